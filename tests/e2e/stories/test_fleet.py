"""A fleet as a whole: who may join, what states its workers go through, and how work spreads over it."""

import signal
import time

from tests.e2e.certificates import own_certificate
from tests.e2e.kit import World
from tests.e2e.processes import wait_until
from tests.e2e.proxy import Proxy
from tests.e2e.tls_terminator import TlsTerminator


def test_jobs_spread_over_ephemeral_and_persistent_workers_of_one_fleet(world: World) -> None:
    workers = [
        world.start_worker("cloud-1", persistent=False),
        world.start_worker("cloud-2", persistent=False),
        world.start_worker("on-prem"),
    ]
    gates = [world.gate() for _ in workers]
    jobs = [world.submit(world.ticking(gate)) for gate in gates]
    for job_id in jobs:
        world.runs(job_id)
    assert {world.job(job_id)["worker_id"] for job_id in jobs} == {worker.id for worker in workers}
    for gate in gates:
        gate.write_text("0")
    for job_id in jobs:
        world.becomes(job_id, "completed")
    assert [worker.running.wait() for worker in workers[:2]] == [0, 0]
    last = world.submit(world.command("true"))
    assert world.becomes(last, "completed")["worker_id"] == workers[2].id


def test_a_job_is_dispatched_by_the_stream_and_waits_for_no_heartbeat(bare_world: World) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_HEARTBEAT_INTERVAL="100", SIMPLETUNER_HEARTBEAT_TIMEOUT="400")
    world.start_worker("listening")
    submitted_at = time.monotonic()
    job_id = world.submit(world.ticking(world.gate()))
    world.runs(job_id)
    assert time.monotonic() - submitted_at < 30
    world.post(f"/api/jobs/{job_id}/cancel")
    world.becomes(job_id, "cancelled")


def test_a_worker_walks_through_the_states_of_the_diagram(bare_world: World) -> None:
    world = bare_world
    # A sweep that comes late must still find the worker reconnecting, and not offline already.
    world.start_server(SIMPLETUNER_HEARTBEAT_TIMEOUT="6")
    worker = world.create_worker("walker")
    assert worker.status == "connecting"
    worker.start("--orchestrator-url", world.url, "--persistent", "--work-dir", str(worker.work_dir))
    worker.becomes("idle")
    gate = world.gate()
    job_id = world.submit(world.ticking(gate), max_retries=0)
    world.runs(job_id)
    assert worker.status == "busy"
    worker.kill_machine(job_id)
    worker.becomes("offline")
    worker.start()
    worker.becomes("idle")
    world.post(f"/api/admin/workers/{worker.id}/drain")
    assert worker.status == "draining"
    worker.running.signal(signal.SIGTERM)
    worker.becomes("offline")
    entries = world.get(f"/api/audit?event_type=worker.status_changed&target_id={worker.id}")["entries"]
    changes = [(entry["details"]["from"], entry["details"]["to"]) for entry in reversed(entries)]
    for expected in (
        ("connecting", "idle"),
        ("idle", "busy"),
        ("busy", "connecting"),
        ("connecting", "offline"),
        ("idle", "draining"),
        ("draining", "offline"),
    ):
        assert expected in changes


def test_workers_may_connect_from_trusted_networks_alone(bare_world: World) -> None:
    world = bare_world
    world.start_server(SIMPLETUNER_WORKER_NETWORKS="10.0.0.0/8")
    worker = world.create_worker("outsider")
    worker.start("--orchestrator-url", world.url, "--work-dir", str(worker.work_dir))
    assert worker.running.wait() == 4
    assert "Workers may not connect from 127.0.0.1" in worker.running.text
    assert worker.status == "connecting"
    world.orchestrator.signal(signal.SIGTERM)
    world.orchestrator.wait()
    world.start_server(SIMPLETUNER_WORKER_NETWORKS="127.0.0.0/8")
    worker.start()
    worker.becomes("idle")


def test_a_worker_needs_nothing_but_the_paths_under_api_workers(world: World) -> None:
    """So that a firewall or a proxy can limit who reaches them."""
    with Proxy(world.port) as proxy:
        worker = world.start_worker("modest", url=proxy.url)
        world.becomes(world.submit(world.command("echo", "done")), "completed")
        killed = world.submit(world.ticking(world.gate()))
        world.runs(killed)
        worker.running.kill()
        wait_until(lambda: world.job(killed)["losses"] == 1, "its shim has reported")
        assert len(proxy.requests) > 5
        for line in proxy.requests:
            assert line.split()[1].startswith("/api/workers/"), line


def test_tls_may_end_at_a_reverse_proxy(bare_world: World) -> None:
    world = bare_world
    certificate, key = own_certificate(world.folder)
    world.start_server("--trusted-proxies", "127.0.0.1/32")
    with TlsTerminator(world.port, certificate, key) as proxy:
        worker = world.start_worker("behind", "--ca-cert", str(certificate), url=proxy.url)
        world.becomes(world.submit(world.command("true")), "completed")
        [entry] = world.get(f"/api/audit?event_type=worker.registered&target_id={worker.id}")["entries"]
        assert entry["ip"] == "203.0.113.7", "the worker's own address, as the proxy tells it"
        worker.running.signal(signal.SIGTERM)
        worker.running.wait()


def test_a_worker_authenticates_by_its_token_header_alone(world: World) -> None:
    worker = world.create_worker("authenticated")
    url = f"{world.url}/api/workers/register"
    register = {"trainers": [], "attempts": [], "gpu_count": 0}
    assert world.client.post(url, json=register).status_code == 401
    bearer = {"authorization": f"Bearer {worker.token}"}
    assert world.client.post(url, json=register, headers=bearer).status_code == 401
    admin = {"authorization": f"Bearer {world.admin_token}"}
    assert world.client.post(url, json=register, headers=admin).status_code == 401
    right = {"x-worker-token": worker.token}
    assert world.client.post(url, json=register, headers=right).status_code == 200
    assert world.client.get(f"{world.url}/api/admin/workers", headers=right).status_code == 401
