"""Fleets of the existing agent point at our orchestrator unchanged, oddities and all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.store import open_store
from tests.http.api_kit import Running, TurnedClock, orchestrator, until
from tests.legacy.agent import LegacyAgent

QUICK = Policy(ping_interval_s=0.1, offer_resend_s=0.1)
FLAT = {"--model_type": "lora", "--num_processes": 1}


@asynccontextmanager
async def legacy(
    running: Running, name: str = "old", *, persistent: bool = True, **choices: Any
) -> AsyncIterator[LegacyAgent]:
    created = await running.create_worker(name, **choices)
    agent = LegacyAgent(running.listening.url, created["token"], persistent=persistent)
    agent.start()
    try:
        await until(lambda: agent.connections == 1)
        yield agent
    finally:
        await agent.stop()


async def status_of(running: Running, job_id: str) -> str:
    return str((await running.job(job_id))["status"])


async def test_it_runs_a_job_from_offer_to_end_with_the_flat_config() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        job = await running.submit(config=FLAT)
        await until(lambda: bool(agent.jobs))
        assert agent.jobs[0]["config"] == FLAT
        assert agent.jobs[0]["upload_endpoint"].endswith(f"/api/workers/job/{job['job_id']}")
        assert isinstance(agent.jobs[0]["upload_token"], str)
        await until(lambda: ("training", 200) in agent.answers)
        assert await status_of(running, job["job_id"]) == "running"
        agent.trainer_ends()
        await until(lambda: agent.current_job is None)
        done = await running.job(job["job_id"])
        assert (done["status"], done["attempt"]) == ("completed", 1)
        worker = (await running.get("/api/admin/workers"))["workers"][0]
        assert (worker["legacy"], worker["gpu_count"], worker["gpu_vram_gb"]) == (True, 1, 24)
        assert worker["trainers"] == ["simpletuner"]


async def test_its_first_report_is_the_acceptance() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        job = await running.submit(config=FLAT)
        await until(lambda: ("starting", 200) in agent.answers)
        tries = (await running.get(f"/api/jobs/{job['job_id']}/attempts"))["attempts"]
        assert tries[0]["accepted_at"] is not None


async def test_two_final_reports_are_taken_once_and_the_first_wins() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        job = await running.submit(config=FLAT)
        await until(lambda: bool(agent.jobs))
        agent.trainer_ends("failed")
        await until(lambda: agent.current_job is None)
        assert [answer for answer in agent.answers if answer[0] == "failed"] == [("failed", 200)] * 2
        ended = await running.job(job["job_id"])
        assert (ended["status"], ended["failures"]) == ("failed", 1)


async def test_a_cancel_stops_it_and_a_second_other_end_changes_nothing() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        job = await running.submit(config=FLAT)
        await until(lambda: ("training", 200) in agent.answers)
        await running.post(f"/api/queue/{job['job_id']}/cancel")
        await until(lambda: agent.current_job is None)
        assert agent.answers[-2:] == [("cancelled", 200), ("completed", 200)]
        assert await status_of(running, job["job_id"]) == "cancelled"


async def test_a_job_it_ignored_is_sent_again_until_it_hears() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        await running.submit(config=FLAT)
        await until(lambda: ("training", 200) in agent.answers)
        agent.final_answer_held.clear()
        second = await running.submit(config=FLAT)
        agent.trainer_ends()
        await until(lambda: second["job_id"] in agent.ignored)
        agent.final_answer_held.set()
        await until(lambda: len(agent.jobs) == 2)
        assert agent.jobs[1]["job_id"] == second["job_id"]
        assert agent.jobs[1]["attempt"] == 1


async def test_its_open_stream_is_a_sign_of_life_while_it_says_nothing() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        job = await running.submit(config=FLAT)
        await until(lambda: ("training", 200) in agent.answers)
        for _ in range(10):
            await running.pass_time(60)
            await asyncio.sleep(0.15)
        job_now = await running.job(job["job_id"])
        assert (job_now["status"], job_now["losses"]) == ("running", 0)
        worker = (await running.get("/api/admin/workers"))["workers"][0]
        assert worker["status"] == "busy"


async def test_without_its_stream_silence_is_silence() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        job = await running.submit(config=FLAT)
        await until(lambda: ("training", 200) in agent.answers)
        await agent.stop()
        await until(lambda: running.deps.hub.worker_count == 0)
        await running.pass_time(130)
        job_now = await running.job(job["job_id"])
        assert (job_now["status"], job_now["losses"]) == ("queued", 1)


async def test_it_registers_again_and_goes_on_with_its_job() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        job = await running.submit(config=FLAT)
        await until(lambda: ("training", 200) in agent.answers)
        running.deps.hub.cut(agent.worker_id, "reconnected")
        await until(lambda: agent.connections == 2)
        assert agent.resumed == [job["job_id"]]
        assert agent.abandoned == []
        agent.trainer_ends()
        await until(lambda: agent.current_job is None)
        done = await running.job(job["job_id"])
        assert (done["status"], done["attempt"]) == ("completed", 1)


async def test_a_job_that_went_elsewhere_meanwhile_is_abandoned() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        agent.current_job = "j_gone"
        running.deps.hub.cut(agent.worker_id, "reconnected")
        await until(lambda: agent.connections == 2)
        assert agent.abandoned == ["j_gone"]
        assert agent.resumed == []


async def test_a_drain_works_from_the_servers_side_alone() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        first = await running.submit(config=FLAT)
        await until(lambda: ("training", 200) in agent.answers)
        await running.post(f"/api/admin/workers/{agent.worker_id}/drain")
        second = await running.submit(config=FLAT)
        await agent.heartbeat()
        agent.trainer_ends()
        await until(lambda: agent.current_job is None)
        await agent.heartbeat()
        assert await status_of(running, first["job_id"]) == "completed"
        assert await status_of(running, second["job_id"]) == "queued"
        worker = (await running.get("/api/admin/workers"))["workers"][0]
        assert worker["status"] == "draining"
        assert len(agent.jobs) == 1


async def test_a_draining_ephemeral_one_is_sent_home_by_a_line_it_can_see() -> None:
    async with (
        orchestrator(policy=QUICK) as running,
        legacy(running, persistent=False) as agent,
    ):
        await running.post(f"/api/admin/workers/{agent.worker_id}/drain")
        await until(lambda: agent.left == "shutdown")


async def test_an_ephemeral_one_asks_for_more_and_says_goodbye() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running, persistent=False) as agent:
        job = await running.submit(config=FLAT)
        await until(lambda: ("training", 200) in agent.answers)
        assert await agent.has_jobs()
        agent.trainer_ends()
        await until(lambda: agent.left is not None)
        assert agent.left == "done"
        assert await status_of(running, job["job_id"]) == "completed"
        worker = (await running.get("/api/admin/workers"))["workers"][0]
        assert (worker["status"], worker["worker_type"]) == ("offline", "ephemeral")


async def test_it_is_offered_only_what_it_can_run_and_one_at_a_time() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        other = await running.submit(config={"trainer": "command", "settings": {"command": ["x"]}})
        assert other["explain"]["code"] == "TRAINER_MISSING"
        await running.submit(config=FLAT)
        waiting = await running.submit(config=FLAT)
        assert waiting["explain"]["code"] == "ALL_MATCHING_BUSY"
        await until(lambda: len(agent.jobs) == 1)


async def test_a_rotated_token_makes_it_leave() -> None:
    async with orchestrator(policy=QUICK) as running, legacy(running) as agent:
        await running.post(f"/api/admin/workers/{agent.worker_id}/token")
        await until(lambda: agent.left == "401")


async def test_a_restart_of_the_orchestrator_does_not_disturb_its_job(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'fleet.db'}"
    clock = TurnedClock()
    store = open_store(url)
    async with orchestrator(store, policy=QUICK, clock=clock) as running:
        created = await running.create_worker("old")
        port = running.listening.port
        agent = LegacyAgent(running.listening.url, created["token"])
        agent.start()
        await until(lambda: agent.connections == 1)
        job = await running.submit(config=FLAT)
        await until(lambda: ("training", 200) in agent.answers)
    await store.close()
    store = open_store(url)
    async with orchestrator(store, policy=QUICK, port=port, clock=clock) as running:
        await until(lambda: agent.connections >= 2, within_s=10)
        assert agent.resumed == [job["job_id"]]
        await running.pass_time(60)
        assert await status_of(running, job["job_id"]) == "running"
        agent.trainer_ends()
        await until(lambda: agent.current_job is None)
        done = await running.job(job["job_id"])
        assert (done["status"], done["attempt"], done["losses"]) == ("completed", 1, 0)
        await agent.stop()
    await store.close()
