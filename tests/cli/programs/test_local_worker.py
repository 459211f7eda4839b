"""The worker beside a server comes back after whatever kept it from running."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from devtools.ports import free_port
from simpletuner_fleet import child_processes
from simpletuner_fleet.cli.programs import local_worker
from simpletuner_fleet.cli.programs.local_worker import LocalWorker
from simpletuner_fleet.core.people import tokens
from tests.e2e.processes import wait_until


async def until(condition: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, what)


async def test_a_worker_whose_pid_could_not_be_written_is_ended_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(local_worker, "FIRST_PAUSE_S", 0.05)
    token_file = tmp_path / "token"
    token_file.write_text(tokens.make(tokens.WORKER, bytes(32)))
    url = f"http://127.0.0.1:{free_port()}"
    pid_file = tmp_path / "local_worker.pid"
    pid_file.mkdir()
    worker = LocalWorker(
        tmp_path, ["--orchestrator-url", url, "--worker-token-file", str(token_file), "--persistent"]
    )
    worker.start()
    await until(lambda: "the local worker cannot run now" in caplog.text, "the first try to fail")
    pid_file.rmdir()
    await until(lambda: pid_file.is_file() and pid_file.read_text().strip(), "a worker to stay")
    assert workers_of(tmp_path) == [int(pid_file.read_text())]
    await worker.stop()
    assert workers_of(tmp_path) == []


async def test_whoever_stops_asking_why_it_stays_off_leaves_no_process(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(tokens.make(tokens.WORKER, bytes(32)))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        worker = LocalWorker(
            tmp_path, ["--orchestrator-url", url, "--worker-token-file", str(token_file), "--persistent"]
        )
        asking = asyncio.create_task(worker._why())
        await until(lambda: workers_of(tmp_path), "the check to begin")
        asking.cancel()
        await asyncio.wait({asking})
        await asyncio.gather(*child_processes._ending)
        assert workers_of(tmp_path) == []


async def test_a_check_that_takes_too_long_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_worker, "CHECK_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        token = tmp_path / "token"
        token.write_text(tokens.make(tokens.WORKER, bytes(32)))
        worker = LocalWorker(tmp_path, ["--orchestrator-url", url, "--worker-token-file", str(token)])
        assert await worker._why() == "it does not say why"
        assert workers_of(tmp_path) == []


def workers_of(folder: Path) -> list[int]:
    pids = []
    for place in Path("/proc").iterdir():
        try:
            words = (place / "cmdline").read_bytes().split(b"\0") if place.name.isdigit() else []
        except OSError:
            continue
        if str(folder / "local-worker").encode() in words:
            pids.append(int(place.name))
    return pids
