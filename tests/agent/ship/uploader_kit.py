"""Folders of an attempt and an uploader for them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from simpletuner_fleet.agent.ship.sample_watch import SampleWatch
from simpletuner_fleet.agent.ship.uploader import Uploader
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.contract import Paths
from tests.agent.object_server import ObjectServer

MEGABYTE = 1024 * 1024


def offer() -> JobSubmit:
    return JobSubmit(
        job_id="j_1",
        attempt=1,
        attempt_id="a_1",
        epoch=3,
        config_name="c",
        config={},
        trainer="command",
        upload_endpoint="",
    )


def checkpoint(paths: Paths, step: int, complete: bool = True, **files: bytes) -> Path:
    folder = paths.output_dir / f"checkpoint-{step}"
    folder.mkdir()
    for name, content in (files or {"model": f"weights of {step}".encode()}).items():
        (folder / name).write_bytes(content)
    if complete:
        (folder / ".guard").write_bytes(b"complete\n")
    return folder


@asynccontextmanager
async def connected(server: ObjectServer) -> AsyncIterator[OrchestratorClient]:
    client = OrchestratorClient(server.url, lambda: "token", None)
    client.answer_timeout_s = 5.0
    try:
        yield client
    finally:
        await client.close()


def picture(paths: Paths, name: str, content: bytes, at: float = 1_700_000_000.0) -> Path:
    path = paths.output_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (at, at))
    return path


def uploader(paths: Paths, client: OrchestratorClient, patience_s: float = 60.0) -> Uploader:
    return Uploader(
        offer(),
        paths,
        CheckpointHabits(),
        client,
        Bandwidth(),
        look_every_s=0.02,
        backoff=Backoff(0.01, 0.05),
        patience_s=patience_s,
        samples=SampleWatch(look_every_s=0.02, sent_every_s=0.02),
    )


async def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    for _ in range(int(within_s / 0.01)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"not within {within_s} s")


def paths_sent(manifest: dict[str, Any]) -> list[str]:
    return [file["path"] for file in manifest["files"]]
