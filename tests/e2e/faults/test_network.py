"""Bad networks: connections dropped, stalled, one-way, slow; replies lost. No trainer is stopped by any of it."""

import json
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.e2e.kit import Worker, World
from tests.e2e.processes import alive, stopped, wait_until
from tests.e2e.proxy import TO_CLIENT, TO_SERVER, Proxy

STREAM = b"GET /api/workers/stream"


@pytest.fixture
def proxy(bare_world: World) -> Iterator[Proxy]:
    with Proxy(bare_world.port) as proxy:
        yield proxy


def registered_since(worker: Worker, before: str) -> bool:
    return bool(worker.seen["registered_at"] > before)


def test_a_dropped_connection_stops_no_trainer_and_the_worker_reconnects(world: World, proxy: Proxy) -> None:
    worker = world.start_worker("dropped", url=proxy.url)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    for _ in range(3):
        before = worker.seen["registered_at"]
        proxy.reset()
        wait_until(partial(registered_since, worker, before), "it registers again")
        world.goes_on(job_id)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert [run.pid for run in world.journal.runs(job_id)] == [trainer]
    assert (job["attempt"], job["losses"]) == (1, 0)
    worker.becomes("idle")


def test_a_stalled_connection_stops_no_trainer_and_the_worker_comes_back(world: World, proxy: Proxy) -> None:
    """No FIN, no RST, for longer than the timeout: the trainer is paused, not ended, and goes on."""
    worker = world.start_worker("stalled", url=proxy.url)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    proxy.stall()
    worker.becomes("offline")
    assert stopped(trainer), "paused before its job was given up"
    proxy.heal()
    world.becomes(job_id, "running")
    world.goes_on(job_id)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert [run.pid for run in world.journal.runs(job_id)] == [trainer]
    assert (job["attempt"], job["losses"]) == (1, 0)


def test_a_worker_cut_off_is_paused_before_its_job_runs_elsewhere(world: World, proxy: Proxy) -> None:
    cut_off = world.start_worker("cut-off", url=proxy.url)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    stale = world.runs(job_id)
    world.start_worker("reachable")
    proxy.stall()
    world.runs(job_id, times=2)
    assert stopped(stale)
    proxy.heal()
    wait_until(lambda: not alive(stale), "the stale trainer is ended")
    gate.write_text("0")
    world.becomes(job_id, "completed")
    world.journal.assert_one_at_a_time(job_id)
    cut_off.becomes("idle")


def test_a_dead_forwarder_is_a_cut_and_no_dead_orchestrator(world: World) -> None:
    """It refuses for itself: the job is given away behind it, and its trainer must have stopped before."""
    with Proxy(world.port) as forwarder:
        world.start_worker("forwarded", url=forwarder.url)
        gate = world.gate()
        job_id = world.submit(world.ticking(gate))
        stale = world.runs(job_id)
        world.start_worker("reachable")
    world.runs(job_id, times=2)
    assert stopped(stale)
    gate.write_text("0")
    world.becomes(job_id, "completed")
    world.journal.assert_one_at_a_time(job_id)


def test_orders_reach_a_worker_whose_stream_is_dead_by_the_answers_to_its_heartbeats(
    world: World, proxy: Proxy
) -> None:
    """The stream stalls without an end; a cancel still arrives."""
    worker = world.start_worker("half-deaf", url=proxy.url)
    job_id = world.submit(world.ticking(world.gate()))
    trainer = world.runs(job_id)
    proxy.silence(STREAM)
    world.post(f"/api/jobs/{job_id}/cancel")
    world.becomes(job_id, "cancelled")
    assert not alive(trainer)
    worker.becomes("idle")


def test_a_stream_that_falls_silent_is_given_up_and_opened_again(world: World, proxy: Proxy) -> None:
    worker = world.start_worker("attentive", url=proxy.url)
    before = worker.seen["registered_at"]
    proxy.silence(STREAM)
    wait_until(lambda: worker.seen["registered_at"] > before, "it misses the pings and registers again")
    gate = world.gate()
    gate.write_text("0")
    world.becomes(world.submit(world.ticking(gate)), "completed")


def test_a_worker_nobody_hears_any_more_loses_its_job_to_another(world: World, proxy: Proxy) -> None:
    world.start_worker("one-way", url=proxy.url)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    proxy.drop(TO_SERVER)
    world.start_worker("two-way", becomes=None)  # it may be given the job before anybody sees it idle
    world.runs(job_id, times=2)
    assert stopped(trainer)
    proxy.heal()
    wait_until(lambda: not alive(trainer), "the stale trainer is ended")
    gate.write_text("0")
    world.becomes(job_id, "completed")
    world.journal.assert_one_at_a_time(job_id)


def test_a_worker_that_hears_nothing_any_more_pauses_and_goes_on_when_it_does(
    world: World, proxy: Proxy
) -> None:
    world.start_worker("deaf", url=proxy.url)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    trainer = world.runs(job_id)
    proxy.drop(TO_CLIENT)
    wait_until(lambda: stopped(trainer), "it cannot know whether its job is still its own")
    proxy.heal()
    world.goes_on(job_id)
    gate.write_text("0")
    world.becomes(job_id, "completed")
    assert len(world.journal.assert_one_at_a_time(job_id)) == 1


def test_a_lost_reply_to_the_final_report_still_records_the_end_once(world: World, proxy: Proxy) -> None:
    worker = world.start_worker("repeater", url=proxy.url)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    proxy.hold_reply(b'"status":"completed"')
    gate.write_text("0")
    assert proxy.held.wait(30)
    world.becomes(job_id, "completed")
    wait_until(lambda: not list((worker.work_dir / "spool").glob("*.json")), "the report is delivered")
    assert world.events(job_id).count("job.completed") == 1
    assert len(world.attempts(job_id)) == 1
    worker.becomes("idle")


def test_an_ephemeral_worker_leaves_only_after_its_final_report_was_answered(
    world: World, proxy: Proxy
) -> None:
    worker = world.start_worker("ephemeral", url=proxy.url, persistent=False)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    proxy.hold_reply(b'"status":"completed"')
    gate.write_text("0")
    assert proxy.held.wait(30)
    assert worker.running.wait() == 0
    assert world.job(job_id)["status"] == "completed"
    assert world.events(job_id).count("job.completed") == 1


@pytest.mark.parametrize("request_line", [b"/accept HTTP", b"/api/workers/register HTTP"])
def test_a_lost_reply_starts_nothing_twice(world: World, proxy: Proxy, request_line: bytes) -> None:
    proxy.hold_reply(request_line)
    world.start_worker("hard-of-reachable", url=proxy.url, becomes=None)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    assert proxy.held.wait(30)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert (job["attempt"], job["losses"]) == (1, 0)
    assert len(world.journal.runs(job_id)) == 1


def test_an_offer_cut_off_in_the_middle_is_heard_again_and_runs_once(world: World, proxy: Proxy) -> None:
    for byte_count in (700, 900, 1100, 1400):
        proxy.cut_after(byte_count)
        worker = world.start_worker(f"cut-{byte_count}", url=proxy.url, persistent=False, becomes=None)
        gate = world.gate()
        gate.write_text("0")
        job_id = world.submit(world.ticking(gate), worker_labels={"hostname": "*"})
        world.becomes(job_id, "completed")
        assert len(world.journal.assert_one_at_a_time(job_id)) == 1
        worker.running.wait()
        proxy.heal()


def test_a_slow_network_only_makes_things_slow(world: World, proxy: Proxy) -> None:
    worker = world.start_worker("far-away", url=proxy.url)
    proxy.delay(0.1)
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    gate.write_text("0")
    job = world.becomes(job_id, "completed")
    assert (job["attempt"], job["losses"]) == (1, 0)
    worker.becomes("idle")


def test_one_worker_that_talks_nonsense_changes_nothing_of_another(world: World) -> None:
    sane = world.start_worker("sane")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate))
    world.runs(job_id)
    mad = world.post("/api/admin/workers", {"name": "mad"})
    headers = {"x-worker-token": mad["token"]}
    epoch = world.attempts(job_id)[0]["epoch"]
    nonsense = [
        ("register", {"gpu_count": "many", "gpus": [{"index": "x"}]}),
        ("heartbeat", {"status": "pwned", "worker_id": sane.id}),
        ("heartbeat", {"status": "pwned", "attempts": [{"job_id": job_id, "epoch": epoch}]}),
        (f"job/{job_id}/status", {"status": "pwned", "epoch": epoch}),
        (f"job/{job_id}/status", {"status": "failed", "epoch": epoch}),
        (f"job/{job_id}/accept", {"epoch": epoch}),
        (f"job/{job_id}/logs", {"epoch": epoch, "offset": 0, "data": "AAAA"}),
        ("disconnect", {"worker_id": sane.id}),
    ]
    for path, body in nonsense:
        answer = world.client.post(f"{world.url}/api/workers/{path}", json=body, headers=headers)
        assert answer.status_code < 500, (path, answer.text)
    raw = world.client.post(f"{world.url}/api/workers/heartbeat", content=b"\xff{", headers=headers)
    assert 400 <= raw.status_code < 500
    assert sane.status == "busy"
    assert world.job(job_id)["status"] == "running"
    assert world.get("/api/admin/workers")["workers"]
    gate.write_text("0")
    world.becomes(job_id, "completed")
    assert json.dumps(world.attempts(job_id)).count('"lost"') == 0
    sane.becomes("idle")


def test_a_second_stream_takes_over_and_the_first_is_closed_never_the_second(world: World) -> None:
    created = world.post("/api/admin/workers", {"name": "twice"})
    headers = {"x-worker-token": created["token"]}
    register = {"name": "twice", "gpu_count": 0, "trainers": ["command"], "attempts": []}
    world.client.post(f"{world.url}/api/workers/register", json=register, headers=headers).raise_for_status()
    url = f"{world.url}/api/workers/stream"
    first_ended = threading.Event()

    def read_to_the_end() -> None:
        with world.client.stream("GET", url, headers=headers) as first:
            opened.set()
            for _ in first.iter_raw():
                pass
        first_ended.set()

    opened = threading.Event()
    reader = threading.Thread(target=read_to_the_end)
    reader.start()
    assert opened.wait(30)
    with world.client.stream("GET", url, headers=headers) as second:
        assert first_ended.wait(30)
        deadline = time.monotonic() + 1.2
        for piece in second.iter_raw():
            assert piece
            if time.monotonic() > deadline:
                break
        worker = world.get(f"/api/admin/workers/{created['worker_id']}")
        assert worker["status"] == "idle"
    reader.join()
