"""Every example of the guide on programs and agents does what the page says, with a real orchestrator and a worker."""

import asyncio
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.http.api.jobs.test_logs_api import put
from tests.http.api.jobs.test_metrics_api import Trainer, point
from tests.http.api_kit import ADMIN, GPU_CONFIG, Agent, Running, orchestrator
from tests.http.upload_kit import Uploader

DOCUMENT = Path(__file__).parents[2] / "docs/guide/en/how-to/programs.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}[^\n]*\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)


async def train(agent: Agent) -> None:
    """Takes every job there is and brings forth a log, numbers, a checkpoint and an artifact."""
    while True:
        offer = await agent.events.next("job_submit", within_s=60)
        await agent.accept(offer)
        await put(agent, offer, 0, b"step 1\nstep 2\n")
        await Trainer(agent, offer).send(0, [point(1, loss=2.0), point(2, loss=1.0)])
        uploader = Uploader(agent, offer)
        await uploader.checkpoint(2, {"state.bin": b"state"})
        await uploader.send(b"model")
        await uploader.manifest(None, {"model.bin": b"model"}, kind="artifact", name="model")
        await agent.report(offer, "completed")


@asynccontextmanager
async def fleet_at_work() -> AsyncIterator[Running]:
    async with orchestrator() as running:
        await running.save_config("cats", GPU_CONFIG)
        training = asyncio.create_task(train(await running.worker(gpus=1)))
        yield running
        training.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await training


async def test_the_python_examples_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.txt").write_text("a cat")
    said = io.StringIO()

    def run_all() -> None:
        names: dict[str, Any] = {"__name__": "examples"}
        with contextlib.redirect_stdout(said):
            for number, example in enumerate(blocks("python"), 1):
                exec(compile(example, f"example {number}", "exec"), names)
        names["fleet"].close()

    async with fleet_at_work() as running:
        monkeypatch.setenv("SIMPLETUNER_URL", running.listening.url)
        monkeypatch.setenv("SIMPLETUNER_API_TOKEN", ADMIN)
        async with asyncio.timeout(60):
            await asyncio.to_thread(run_all)
    lines = said.getvalue()
    assert "completed gpu-1" in lines
    assert "VRAM_TOO_SMALL" in lines
    assert "step 1\nstep 2\n[1, 2] [2.0, 1.0]" in lines
    assert "not_found 404" in lines
    assert (tmp_path / "results" / "model" / "model.bin").read_bytes() == b"model"
    assert (tmp_path / "checkpoint" / "checkpoint-2" / "state.bin").read_bytes() == b"state"


async def test_an_agents_settings_start_a_server_that_answers() -> None:
    (settings,) = blocks("json")
    server = json.loads(settings)["mcpServers"]["fleet"]
    assert server["command"] == "simpletuner"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "simpletuner_fleet.cli.main", *server["args"]),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "SIMPLETUNER_URL": "http://127.0.0.1:1"},
    )
    line = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}\n'
    out, _ = await asyncio.wait_for(process.communicate(line), 30)
    assert json.loads(out)["result"]["serverInfo"]["name"] == "simpletuner-fleet"
