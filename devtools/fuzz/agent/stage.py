"""A real agent with a real trainer that ticks, and an orchestrator that says whatever it is told to."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from devtools.fuzz.agent.lying_server import LyingServer
from simpletuner_fleet.agent.departure import Departure
from simpletuner_fleet.agent.isolation.places import JobPath
from simpletuner_fleet.agent.program import WorkerSettings, run_agent
from simpletuner_fleet.core.people import tokens

TOKEN = tokens.make("wt", b"w" * 32)
PATIENCE_S = 120.0
TRAINER = """
import os, sys, time
ticks, gate = sys.argv[1:3]
while not os.path.exists(gate):
    with open(ticks, "a") as file:
        file.write(".")
    time.sleep(0.02)
"""


class Stage(Struct):
    server: LyingServer
    agent: "asyncio.Task[Departure]"
    folder: Path

    @property
    def ticks(self) -> int:
        path = self.folder / "open" / "ticks"
        return path.stat().st_size if path.exists() else 0

    async def goes_on(self) -> None:
        """The agent lives and its trainer ticks."""
        before = self.ticks
        await until(lambda: self.ticks > before + 1, "the trainer ticks")
        assert not self.agent.done(), self.agent

    async def ends_well(self) -> None:
        (self.folder / "open" / "gate").touch()
        await until(lambda: self.outcome("j_good") == "completed", "the job's end is reported")

    def outcome(self, job_id: str) -> str | None:
        statuses = [one["status"] for one in self.server.reports if one["job_id"] == job_id]
        return statuses[-1] if statuses else None


async def until(condition: Any, what: str) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.02)


def offer(**changes: Any) -> bytes:
    message = {
        "type": "job_submit",
        "job_id": "j_good",
        "attempt": 1,
        "attempt_id": "a_good",
        "epoch": 7,
        "config_name": "c",
        "config": {"settings": {"command": ["true"]}},
        "trainer": "command",
        "upload_endpoint": "",
        **changes,
    }
    return event(b"job_submit", json.dumps(message).encode())


def event(name: bytes, data: bytes) -> bytes:
    return b"event: " + name + b"\nid: 1\ndata: " + data + b"\n\n"


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """An agent with a trainer that runs until its gate opens."""
    granted = folder / "open"
    granted.mkdir()
    granted.chmod(0o777)
    async with LyingServer() as server:
        settings = WorkerSettings(
            url=server.url,
            token=TOKEN,
            token_file=None,
            name="w",
            persistent=True,
            work_dir=folder / "work",
            max_jobs=32,
            job_paths=(JobPath(str(granted), writable=True),),
        )
        agent = asyncio.create_task(run_agent(settings, {"SIMPLETUNER_GPU_INVENTORY": "[]"}))
        on_stage = Stage(server, agent, folder)
        command = [sys.executable, "-c", TRAINER, str(granted / "ticks"), str(granted / "gate")]
        try:
            await server.say(offer(config={"command": command}))
            await on_stage.goes_on()
            yield on_stage
        finally:
            (granted / "gate").touch()
            await until(lambda: agent.done() or on_stage.outcome("j_good"), "the trainer has ended")
            agent.cancel()
            await asyncio.gather(agent, return_exceptions=True)
