"""What every job goes through runs in memory: no step of it waits to have the database to itself."""

from pathlib import Path

import pytest

from simpletuner_fleet.store.sqlite import SqliteStore
from simpletuner_fleet.store.writing.pipeline import CommitPipeline
from tests.http.api_kit import orchestrator

COMMAND = {"trainer": "command", "settings": {"command": ["true"]}, "resources": {"gpus": 1}}


@pytest.mark.parametrize("target", ["worker", "auto"])
async def test_no_step_of_a_jobs_life_needs_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    direct: list[str] = []
    begin = CommitPipeline._begin_direct

    def noting(pipeline: CommitPipeline) -> None:
        direct.append(repr(pipeline._waiting[0].step))
        begin(pipeline)

    store = SqliteStore(tmp_path / "fleet.db")
    try:
        async with orchestrator(store=store) as running:
            agent = await running.worker(gpus=1)
            await running.http.put("/api/configs/noop", json=COMMAND)
            await running.submit(config_name="noop", target=target)  # whatever is asked for once is remembered
            await agent.report(await agent.take(), "completed")
            monkeypatch.setattr(CommitPipeline, "_begin_direct", noting)
            await running.submit(config_name="noop", target=target)
            offer = await agent.take()
            await agent.report(offer, "running", progress={"step": 1, "total": 2})
            await agent.heartbeat(offer)
            await agent.report(offer, "completed")
            assert (await running.get(f"/api/jobs/{offer['job_id']}"))["status"] == "completed"
    finally:
        await store.close()
    assert direct == []
