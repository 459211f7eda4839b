"""A worker that lies, guesses and babbles harms nobody but itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.core.jobs.progress import read_progress
from simpletuner_fleet.core.restoring import least_epoch
from simpletuner_fleet.protocol.messages import StatusReport
from simpletuner_fleet.store import open_store
from tests.http.api_kit import Agent, Running, orchestrator


async def picture(running: Running, *, without: str = "") -> Any:
    """Everything others could notice."""
    workers = [
        {key: value for key, value in row.items() if key != "last_heartbeat"}
        for row in (await running.get("/api/admin/workers"))["workers"]
        if row["id"] != without
    ]
    return workers, (await running.get("/api/jobs"))["jobs"]


async def victim_and_liar(running: Running) -> tuple[Agent, dict[str, Any], Agent]:
    victim = await running.worker("victim")
    await running.submit()
    offer = await victim.take()
    await victim.report(offer, "running", progress={"step": 1})
    return victim, offer, await running.worker("liar")


async def test_another_workers_job_is_out_of_reach() -> None:
    async with orchestrator() as running:
        _, offer, liar = await victim_and_liar(running)
        before = await picture(running, without=liar.id)
        for status in ("completed", "failed", "running", "released", "cancelled"):
            refused = await liar.report(offer, status, expect=409)
            assert refused["code"] == "stale_attempt"
        await liar.accept(offer, expect=409)
        await liar.call(f"job/{offer['job_id']}/status", {"status": "completed"}, 404)
        await liar.call(
            f"job/{offer['job_id']}/logs", {"epoch": offer["epoch"], "offset": 0, "data": "eA=="}, 409
        )
        stop = (await liar.heartbeat(offer))["stop"]
        assert stop[0]["reason"] == "stale"
        assert await picture(running, without=liar.id) == before


async def test_a_message_in_another_workers_name_is_refused_and_changes_nothing() -> None:
    async with orchestrator() as running:
        victim, offer, liar = await victim_and_liar(running)
        before = await picture(running)
        for path in ("heartbeat", "disconnect"):
            refused = await liar.call(path, {"worker_id": victim.id}, 403)
            assert refused["code"] == "other_worker"
        asked = await liar.http.get(f"/api/workers/queue?worker_id={victim.id}")
        assert asked.status_code == 403
        assert await picture(running) == before
        await victim.report(offer, "completed")


async def test_claiming_anothers_attempt_at_registration_earns_a_stop() -> None:
    async with orchestrator() as running:
        _, offer, liar = await victim_and_liar(running)
        before = await picture(running, without=liar.id)
        held = [{"job_id": offer["job_id"], "epoch": offer["epoch"], "state": "running"}]
        answer = await liar.register(attempts=held)
        assert answer["keep"] == []
        assert [(one["job_id"], one["reason"]) for one in answer["stop"]] == [(offer["job_id"], "stale")]
        assert await picture(running, without=liar.id) == before


@pytest.mark.parametrize("epoch", [0, -1, 999, 2**52])
async def test_a_wrong_epoch_is_stale(epoch: int) -> None:
    async with orchestrator() as running:
        victim, offer, _ = await victim_and_liar(running)
        before = await picture(running)
        refused = await victim.report({**offer, "epoch": epoch}, "completed", expect=409)
        assert refused["code"] == "stale_attempt"
        await victim.accept({**offer, "epoch": epoch}, expect=409)
        assert await picture(running) == before


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"status": "pwned"}',
        b'{"status": 7}',
        b'{"status": "completed", "epoch": "one"}',
        b'{"status": "completed", "epoch": 1e400}',
        b'{"status": "completed", "epoch": 99999999999999999999}',
        b'{"status": "running", "progress": [1]}',
        b'{"status": "running", "error": "\\u0000"}',
        b'{"status": "\xff"}',
        b'{"status": "running", "progress": ' + b'{"a":' * 100 + b"1" + b"}" * 100 + b"}",
    ],
)
async def test_garbage_is_the_callers_fault_and_changes_nothing(body: bytes) -> None:
    async with orchestrator() as running:
        victim, offer, liar = await victim_and_liar(running)
        before = await picture(running)
        for agent in (victim, liar):
            answer = await agent.http.post(
                f"/api/workers/job/{offer['job_id']}/status",
                content=body,
                headers={"Content-Type": "application/json"},
            )
            assert answer.status_code in (400, 422), (body, answer.text)
            assert answer.headers["content-type"] == "application/problem+json"
        assert await picture(running) == before


async def test_huge_messages_are_turned_away() -> None:
    async with orchestrator() as running:
        victim, offer, _ = await victim_and_liar(running)
        huge = json.dumps({"status": "running", "error": "x" * 1_000_000}).encode()
        answer = await victim.http.post(
            f"/api/workers/job/{offer['job_id']}/status",
            content=huge,
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 413
        await victim.register(expect=422, labels={f"k{at}": "v" for at in range(100)})
        await victim.register(expect=422, trainers=[f"t{at}" for at in range(100)])
        await victim.register(gpus=None, expect=422, gpu_count=10**6)
        await victim.register(expect=422, max_jobs=0)
        assert (await running.job(offer["job_id"]))["status"] == "running"


async def test_infinite_and_missing_numbers_in_progress_do_not_break_the_job() -> None:
    async with orchestrator() as running:
        victim, offer, _ = await victim_and_liar(running)
        await victim.report(offer, "running", progress={"step": -5, "loss": None, "x": {"y": [1]}})
        assert (await running.job(offer["job_id"]))["progress"]["loss"] is None


@pytest.mark.parametrize(
    "said",
    [
        {"step": "many", "total": "<script>", "loss": "nan", "eta_s": "soon"},
        {"step": -5, "total": 2**62, "eta_s": 1e300, "rate": -1e300},
        {"step": {"y": [1]}, "loss": [0.5], "phase": {"a": "b"}, "nested": {"a": [1]}, "list": [1] * 50},
        {"phase": "x" * 50_000, **{f"n{at}": "y" * 150 for at in range(200)}},
    ],
)
async def test_of_hostile_progress_only_what_can_be_believed_is_stored_and_told(said: dict[str, Any]) -> None:
    async with orchestrator() as running:
        victim, offer, _ = await victim_and_liar(running)
        await victim.report(offer, "running", progress=said)
        stored = await running.fleet.read(lambda view: view.job(offer["job_id"]))
        progress = (await running.job(offer["job_id"]))["progress"]
        assert stored is not None
        assert stored.progress == read_progress(said)
        assert progress == read_progress(said).fields()
        assert set(progress) & {"step", "total", "loss", "eta_s", "rate", "nested", "list"} == set()
        assert len(str(progress)) < 5_000
        assert (await victim.report(offer, "completed", progress=said))["job_status"] == "completed"


async def test_unknown_statuses_in_heartbeats_break_neither_list_nor_sweep() -> None:
    async with orchestrator() as running:
        _, offer, liar = await victim_and_liar(running)
        await liar.heartbeat(status="pwned")
        await running.pass_time(10)
        assert len((await running.get("/api/admin/workers"))["workers"]) == 2
        assert (await running.job(offer["job_id"]))["status"] == "running"


async def test_a_stray_epoch_from_the_future_cannot_be_met_again() -> None:
    async with orchestrator() as running:
        victim, _, liar = await victim_and_liar(running)
        held = [{"job_id": "j_old", "epoch": 5_000, "state": "running"}]
        await liar.register(attempts=held)
        await victim.call("disconnect", {})
        offer = await liar.offer()
        assert offer["epoch"] > 5_000


async def test_an_epoch_of_a_restored_database_is_not_met_again_in_an_older_copy() -> None:
    async with orchestrator() as running:
        victim, _, restored = await victim_and_liar(running)
        epoch = least_epoch(running.clock.at - 60.0)
        await restored.register(attempts=[{"job_id": "j_old", "epoch": epoch, "state": "running"}])
        await victim.call("disconnect", {})
        offer = await restored.offer()
        assert offer["epoch"] > epoch


@pytest.mark.parametrize("reason", ["time_limit", "resume_failed", "drained", "pwned"])
async def test_an_offer_given_back_unaccepted_waits_again_whatever_the_reason(reason: str) -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        job = await running.submit()
        offer = await agent.offer()
        answer = await agent.report(offer, "released", reason=reason)
        assert answer["job_status"] == "queued"
        assert (await running.job(job["job_id"]))["failures"] == 0


HOSTILE_VALUES: dict[str, tuple[Any, ...]] = {
    "exit_code": (2**31, 2**63 - 1, -(2**63), 2**63, 2**64),
    "exit_signal": (2**31, 2**63 - 1, -(2**63), 2**63, 2**64),
    "resume_below": (0, 2**53, 2**53 + 1, -1),
    "restart": (True, 1, "yes"),
    "reason": ("\0", "\ud800", "a" * 10_000, 7),
    "error": ("\0", "\ud800", "a" * 100_000),
    "last_lines": ("\0", "\ud800", "a" * 100_000),
    "progress": ({"step": 2**64}, {"phase": {"a": [1]}}, {"loss": 1e308}, {"\0": "\ud800"}, [], 7),
    "attempt": (2**64, "\0", -1),
    "epoch": (2**63, 2**64, -(2**63), "1"),
    "incarnation": ("\0", "\ud800", "a" * 10_000),
    "results": ("pwned", "\0", "a" * 10_000, 7),
    "blame": ("pwned", "\0", "a" * 10_000, 7),
    "validation_asked_at": (-1.0, 1e308, 2**64, "now"),
}
assert HOSTILE_VALUES.keys() == set(StatusReport.__struct_fields__) - {"status"}, "every field has some"
HOSTILE_FIELDS = [{field: value} for field, values in HOSTILE_VALUES.items() for value in values]


@pytest.mark.parametrize("home", ["sqlite", "postgresql"])
async def test_no_field_of_a_report_breaks_the_orchestrator(
    home: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = (
        f"sqlite:///{tmp_path / 'fleet.db'}"
        if home == "sqlite"
        else request.getfixturevalue("ready_database")
    )
    async with orchestrator(open_store(url)) as running:
        agent = await running.worker()
        broken = [
            (status, fields)
            for fields in HOSTILE_FIELDS
            for status in ("running", "failed")
            if await status_of_hostile_report(running, agent, {"status": status, **fields}) >= 500
        ]
        assert not broken


async def status_of_hostile_report(running: Running, agent: Agent, fields: dict[str, Any]) -> int:
    await running.submit(max_retries=0)
    offer = await agent.take()
    path = f"/api/workers/job/{offer['job_id']}/status"
    body = json.dumps({"epoch": offer["epoch"], **fields})
    answer = await agent.http.post(path, content=body, headers={"content-type": "application/json"})
    await agent.http.post(path, json={"epoch": offer["epoch"], "status": "failed"})
    await running.http.post(f"/api/jobs/{offer['job_id']}/cancel")
    await agent.heartbeat()
    return answer.status_code
