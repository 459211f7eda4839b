"""What the console has and the command line, too: runs side by side, when a job starts, and with what it would start now."""

import asyncio
from typing import Any

import pytest

from simpletuner_fleet.cli.frame.quantities import parse
from simpletuner_fleet.cli.jobs.outlook import outlook_lines
from simpletuner_fleet.core.configs.bundle_diff import MOST_COUNTED, MOST_LISTED
from tests.cli.conftest import Result, Run
from tests.http.api.jobs.test_metrics_api import Trainer, point
from tests.http.api_kit import ADMIN, GPU_CONFIG, Agent, Running, orchestrator

Asked = Any


@pytest.fixture
def said(run: Run, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The command line in a thread, against an orchestrator in this loop."""

    async def ask(running: Running, *words: str) -> Result:
        monkeypatch.setenv("SIMPLETUNER_URL", running.listening.url)
        monkeypatch.setenv("SIMPLETUNER_API_TOKEN", ADMIN)
        return await asyncio.to_thread(run, *words)

    return ask


async def test_runs_stand_side_by_side_with_their_numbers_and_what_differs(said: Asked) -> None:
    async with orchestrator() as running:
        agent = await running.worker()
        ids = []
        for rate in (0.1, 0.2):
            config = {
                "trainer": "command",
                "settings": {"command": ["true"], "lr": rate},
                "resources": {"gpus": 0},
            }
            ids.append((await running.submit(config=config, config_name=f"lr-{rate}"))["job_id"])
            offer = await agent.take()
            await Trainer(agent, offer).send(0, [point(1, loss=2.0), point(2, loss=rate)])
            await agent.report(offer, "completed")
        table = await said(running, "jobs", "compare", ids[0], ids[1])
        assert table.code == 0, table.err
        rows = {row[0]: row[1:] for row in (line.split("\t") for line in table.out.splitlines())}
        assert rows["WHAT"] == ids
        assert rows["name"] == ["lr-0.1", "lr-0.2"]
        assert rows["loss (last)"] == ["0.1", "0.2"]
        assert rows["loss (max)"] == ["2", "2"]
        assert rows["settings.lr"] == ["0.1", "0.2"]
        whole = (await said(running, "jobs", "compare", *ids, "--json")).json
        assert whole["metrics"][ids[1]]["loss"]["last"] == 0.2
        assert whole["differences"][0]["path"] == "$.settings.lr"
        same = await said(running, "jobs", "compare", ids[0], ids[0])
        assert "Their configs are the same." in same.err
        alone = await said(running, "jobs", "compare", ids[0])
        assert alone.code == 2
        assert "two to eight jobs" in alone.err


async def test_of_very_many_differences_the_rest_is_counted(said: Asked) -> None:
    async with orchestrator() as running:
        ids = []
        for value in (0, 1):
            config = {"trainer": "demo", "settings": {"x": [value] * (MOST_LISTED + 5)}}
            await running.save_config("long", config)
            ids.append((await running.submit(config_name="long"))["job_id"])
        compared = await said(running, "jobs", "compare", *ids)
        assert "5 more changes are not shown." in compared.err
        changed = await said(running, "configs", "diff", "long")
        assert "5 more changes are not shown." in changed.err
        assert "(at least)" not in compared.err + changed.err


async def test_more_differences_than_anybody_counts_are_so_many_at_least(said: Asked) -> None:
    async with orchestrator() as running:
        ids = []
        for value in (0, 1):
            config = {"trainer": "demo", "settings": {"x": [value] * (MOST_LISTED + MOST_COUNTED + 1)}}
            await running.save_config("endless", config)
            ids.append((await running.submit(config_name="endless"))["job_id"])
        compared = await said(running, "jobs", "compare", *ids)
        assert "100000 more changes are not shown. (at least)" in compared.err.replace(",", "")
        changed = await said(running, "configs", "diff", "endless")
        assert "100000 more changes are not shown. (at least)" in changed.err.replace(",", "")


async def test_a_waiting_job_says_when_it_starts_and_with_what_it_would_now(said: Asked) -> None:
    async with orchestrator() as running:
        agent = await running.worker(gpus=1)
        await running.submit(config=GPU_CONFIG, name="cats", time_limit_s=3600)
        offer = await agent.take()
        await agent.report(offer, "running", progress={"step": 1, "total": 10, "eta_s": 600.0})
        waiting = (await running.submit(config=GPU_CONFIG, gpus=1))["job_id"]
        why = await said(running, "jobs", "explain", waiting)
        assert "gpu-1 is busy with cats until" in why.out
        assert "nobody is ahead of it" in why.out
        shown = await said(running, "jobs", "get", waiting)
        assert "gpu-1 is busy with cats until" in shown.err
        whole = (await said(running, "jobs", "explain", waiting, "--json")).json
        assert whole["outlook"]["start"]["worker"] == "gpu-1"

        await running.post(f"/api/jobs/{waiting}/cancel")
        small = Agent(running, await running.create_worker("gpu-2"))
        await small.register(gpus=[{"index": 0, "uuid": "GPU-small", "name": "RTX", "vram_gb": 40}])
        await small.open_stream()
        large = (await running.submit(config=GPU_CONFIG, gpus=1, min_vram_gb=80))["job_id"]
        asked = await said(running, "jobs", "explain", large)
        assert "It would start now with\n  40 GB of GPU memory instead of 80" in asked.out, (
            asked.out + asked.err
        )


def test_every_other_way_has_its_words() -> None:
    requires = {"gpus": 4, "min_vram_gb": 80.0, "target": "local"}
    outlook = {
        "start": {"at": "2026-01-01T01:20:00Z", "worker": "gpu-1", "job": "cats", "ahead": 2},
        "now_with": [{"gpus": 1}, {"min_vram_gb": 40.5}, {"without_label": "zone"}, {"target": "auto"}],
    }
    lines = outlook_lines(outlook, requires, now=parse("2026-01-01T00:00:00Z"))
    assert lines[0].startswith("Starts in about 1h20m: gpu-1 is busy with cats until ")
    assert lines[1:] == [
        "  A rough guess: 2 jobs are ahead of it.",
        "It would start now with",
        "  1 GPU instead of 4",
        "  40.5 GB of GPU memory instead of 80",
        "  the label zone left out",
        "  any target instead of Local",
    ]
    assert outlook_lines({}, requires) == []
