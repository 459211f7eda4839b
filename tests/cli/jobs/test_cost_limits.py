"""`--max-cost` of `jobs submit`, `edit` and `retry`, against an orchestrator in this process."""

import asyncio
from typing import Any

import pytest

from simpletuner_fleet.orchestrator.sweep import sweep_once
from tests.cli.conftest import Result, Run
from tests.http.api_kit import ADMIN, GPU_CONFIG, Running, orchestrator

Asked = Any
HOUR_S = 3600.0


@pytest.fixture
def said(run: Run, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The command line in a thread, against an orchestrator in this loop."""

    async def ask(running: Running, *words: str) -> Result:
        monkeypatch.setenv("SIMPLETUNER_URL", running.listening.url)
        monkeypatch.setenv("SIMPLETUNER_API_TOKEN", ADMIN)
        return await asyncio.to_thread(run, "jobs", *words)

    return ask


async def test_a_cost_limit_is_set_raised_and_lifted(said: Asked) -> None:
    async with orchestrator() as running:
        await running.save_config("sdxl", GPU_CONFIG)
        await running.worker(gpus=1, name="desk")
        words = ("submit", "sdxl", "--max-cost", "5.00", "--on-max-cost", "finish", "--json")
        submitted = await said(running, *words)
        assert submitted.code == 0, submitted.err
        job = submitted.json["job_id"]
        kept = await running.job(job)
        assert (kept["max_cost_micros"], kept["on_max_cost"]) == (5_000_000, "finish")
        explained = await said(running, "explain", job)
        assert "the price of matching workers is not known: desk" in explained.out
        assert "simpletuner prices worker NAME 0" in explained.err
        shown = await said(running, "get", job)
        assert "5 (0 spent), then the running attempt may finish" in shown.out
        raised = await said(running, "edit", job, "--max-cost", "7.5", "--on-max-cost", "stop", "--json")
        assert (raised.json["max_cost_micros"], raised.json["on_max_cost"]) == (7_500_000, "stop")
        lifted = await said(running, "edit", job, "--max-cost", "none", "--json")
        assert lifted.json["max_cost_micros"] is None
        assert (await said(running, "edit", job, "--max-cost", "cheap")).code != 0


async def test_a_job_that_was_stopped_says_why_and_goes_on_with_more(said: Asked) -> None:
    async with orchestrator() as running:
        agent = await running.worker(gpus=1)
        await running.http.patch(f"/api/admin/workers/{agent.id}", json={"price_micros": 1_000_000})
        job = (await running.submit(gpus=1, max_cost_micros=1_000_000))["job_id"]
        offer = await agent.take()
        running.clock.at += 0.95 * HOUR_S
        await agent.heartbeat(offer)
        await sweep_once(running.fleet)
        await agent.report(offer, "released", reason="drained", error="the worker was drained")
        shown = await said(running, "get", job)
        assert "Cost limit reached: the cost limit of 1 would have been passed; 0.95 was spent" in shown.out
        assert "1 (0.95 spent)" in shown.out
        again = await said(running, "retry", job, "--max-cost", "3", "--json")
        assert again.code == 0, again.err
        assert (again.json["max_cost_micros"], again.json["spent_micros"]) == (3_000_000, 950_000)
        assert (await agent.take())["job_id"] == again.json["id"]
