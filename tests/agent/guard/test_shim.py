"""The shim when its agent dies, freezes or comes back: real processes, killed for real."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from simpletuner_fleet.agent.guard.runner import EndedAttempt, Runner, RunningTrainer
from simpletuner_fleet.agent.guard.shim_client import Order
from tests.agent.shim_fixtures import (
    DOUBLE_FORK,
    TICKER,
    Reports,
    alive,
    listening,
    order_for,
    pid_in,
    read,
    report_to,
    shim_of,
    start,
    until,
)

AGENT = Path(__file__).parents[1] / "agent_process.py"
A_MOMENT = "import time; time.sleep(0.5)"
"""A trainer that lives long enough to be looked at."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Named as no other attempt on this machine: a sweep ends whatever carries its name."""
    return tmp_path / f"a_{secrets.token_hex(6)}"


class Agent:
    def __init__(self, process: asyncio.subprocess.Process, trainer: int, shim: int) -> None:
        self.process = process
        self.trainer = trainer
        self.shim = shim

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@contextlib.asynccontextmanager
async def agent_running(order: Order, lease_s: float | None = None) -> AsyncIterator[Agent]:
    order_file = Path(order.attempt_dir) / "test-order.json"
    order_file.write_bytes(msgspec.json.encode(order))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        AGENT,
        order_file,
        *([str(lease_s)] if lease_s else []),
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    trainer = int(await process.stdout.readline())
    agent = Agent(process, trainer, shim_of(trainer))
    try:
        yield agent
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await until(lambda: not alive(agent.shim), "the shim to leave")


async def test_a_killed_agent_takes_its_trainer_along_and_the_shim_reports_it(folder: Path) -> None:
    reports = Reports()
    with listening(reports) as url:
        order = order_for(folder, DOUBLE_FORK + "time.sleep(600)", adopt_grace_s=0.2, report=report_to(url))
        async with agent_running(order) as agent:
            daemon = await until(lambda: pid_in(folder / "daemon.pid"))
            await agent.kill()
            await until(lambda: reports.seen, "the shim's report")
            assert not alive(agent.trainer)
            assert not alive(daemon)
    path, token, body = reports.seen[0]
    assert path == "/api/workers/job/j_1/status"
    assert token == "ut_secret"
    assert (body["status"], body["epoch"], body["attempt"]) == ("lost", 7, 2)
    assert body["error"] == "the worker agent died"
    assert (folder / "reported.json").exists()
    async with Runner() as runner:
        adopted = await runner.adopt(folder)
    assert isinstance(adopted, EndedAttempt)
    assert (adopted.exit.reason, adopted.reported) == ("agent_lost", True)


async def test_a_new_agent_within_the_grace_goes_on_with_the_same_trainer(folder: Path) -> None:
    order = order_for(folder, TICKER, adopt_grace_s=600)
    async with agent_running(order, lease_s=600) as agent:
        await until(lambda: read(folder / "ticks"))
        await agent.kill()
        async with Runner() as runner:
            adopted = await runner.adopt(folder)
            assert isinstance(adopted, RunningTrainer)
            assert adopted.pid == agent.trainer
            ticks = len(read(folder / "ticks"))
            await until(lambda: len(read(folder / "ticks")) > ticks)
            adopted.stop(0)
            ended = await adopted.wait()
            await adopted.release()
    assert ended.reason == "stopped"


async def test_a_very_long_attempt_folder_is_no_hindrance(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / f"a_{secrets.token_hex(6)}"
    async with agent_running(order_for(deep, TICKER, adopt_grace_s=600)) as agent:
        await agent.kill()
        async with Runner() as runner:
            adopted = await runner.adopt(deep)
            assert isinstance(adopted, RunningTrainer)
            assert adopted.pid == agent.trainer
            adopted.stop(0)
            await adopted.wait()
            await adopted.release()


async def test_a_trainer_that_ended_while_no_agent_was_there_is_handed_to_the_next_one(folder: Path) -> None:
    program = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)\nprint('made it')"
    async with agent_running(order_for(folder, program, adopt_grace_s=600)) as agent:
        await agent.kill()
        (folder / "go").touch()
        await until((folder / "exit.json").exists)
        async with Runner() as runner:
            adopted = await runner.adopt(folder)
            assert isinstance(adopted, RunningTrainer)
            ended = await adopted.wait()
            await adopted.release()
    assert (ended.reason, ended.exit_code, ended.last_lines) == ("exited", 0, "made it")
    assert not (folder / "reported.json").exists()


async def test_an_end_that_the_dead_agent_has_not_delivered_is_reported_by_the_shim(folder: Path) -> None:
    reports = Reports(503, 500)
    with listening(reports) as url:
        order = order_for(
            folder,
            f"{A_MOMENT}; print('boom'); raise SystemExit(3)",
            adopt_grace_s=0.05,
            report=report_to(url),
        )
        async with agent_running(order) as agent:
            await until((folder / "exit.json").exists)
            await agent.kill()
            await until((folder / "reported.json").exists, "a report that was taken")
    assert len(reports.seen) == 3
    body = reports.seen[-1][2]
    assert (body["status"], body["exit_code"], body["last_lines"]) == ("failed", 3, "boom\n")
    assert body["error"] == "the trainer ended with exit code 3"


async def test_a_well_ended_trainer_is_not_called_completed_before_somebody_knows_what_is_stored(
    folder: Path,
) -> None:
    reports = Reports()
    with listening(reports) as url:
        order = order_for(folder, A_MOMENT, adopt_grace_s=0.05, report=report_to(url))
        async with agent_running(order) as agent:
            await until((folder / "exit.json").exists)
            await agent.kill()
            await until(lambda: bool(reports.seen))
            await until(lambda: not alive(agent.shim))
    (body,) = [body for _, _, body in reports.seen]
    assert (body["status"], body["progress"]["phase"]) == ("running", "finishing")
    assert "the worker's agent has died" in body["progress"]["waiting_for"]
    assert not (folder / "reported.json").exists(), "the next agent has to say how it ended"


async def test_the_shim_never_says_completed_where_the_exit_code_does_not_tell(folder: Path) -> None:
    reports = Reports()
    with listening(reports) as url:
        order = order_for(folder, A_MOMENT, adopt_grace_s=0.05, report=report_to(url), exit_tells=False)
        async with agent_running(order) as agent:
            await until((folder / "exit.json").exists)
            await agent.kill()
            await until((folder / "reported.json").exists)
    assert [body["status"] for _, _, body in reports.seen] == ["lost"]


async def test_an_agent_that_dies_while_it_cancels_is_reported_as_it_meant_it(folder: Path) -> None:
    reports = Reports()
    program = """
import signal, time
signal.signal(15, lambda *_: print("deaf", flush=True))
print("on", flush=True)
while True: time.sleep(600)
"""
    with listening(reports) as url:
        order = order_for(folder, program, adopt_grace_s=0.05, report=report_to(url))
        async with agent_running(order) as agent:
            await until(lambda: "on" in read(folder / "output.log"))
            agent.process.send_signal(signal.SIGUSR1)
            await until(lambda: "deaf" in read(folder / "output.log"))
            await agent.kill()
            await until(lambda: reports.seen)
    assert reports.seen[0][2]["status"] == "cancelled"


async def test_a_frozen_agent_does_not_renew_so_its_trainer_is_paused_and_goes_on_afterwards(
    folder: Path,
) -> None:
    async with agent_running(order_for(folder, TICKER, adopt_grace_s=0), lease_s=0.5) as agent:
        await until(lambda: read(folder / "ticks"))
        os.kill(agent.process.pid, signal.SIGSTOP)
        await until(lambda: state_of(agent.trainer) == "T", "the pause")
        ticks = len(read(folder / "ticks"))
        os.kill(agent.process.pid, signal.SIGCONT)
        await until(lambda: len(read(folder / "ticks")) > ticks, "the next tick")
        assert alive(agent.trainer)


async def test_a_spare_shim_leaves_with_its_agent(folder: Path) -> None:
    async with agent_running(order_for(folder, TICKER, adopt_grace_s=0)) as agent:
        shims = await until(lambda: [pid for pid in children_of(agent.process.pid) if pid != agent.shim])
        await agent.kill()
        await until(lambda: not any(map(alive, shims)), "the spare to leave")
        await until(lambda: not alive(agent.trainer))


async def test_signals_from_the_terminal_do_not_end_a_shim(folder: Path) -> None:
    async with agent_running(order_for(folder, TICKER, adopt_grace_s=0)) as agent:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            os.kill(agent.shim, number)
        ticks = len(read(folder / "ticks"))
        await until(lambda: len(read(folder / "ticks")) > ticks)
        assert alive(agent.shim)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()


def children_of(pid: int) -> list[int]:
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_bytes().rpartition(b")")[2].split()[1]) == pid:
                children.append(int(stat.parent.name))
    return children


LAUNCHER = """
import os, subprocess, sys, time
code = "import os, time; open('child.pid', 'w').write(str(os.getpid()) + chr(10)); time.sleep(600)"
subprocess.Popen([sys.executable, "-c", code], env={}, start_new_session=True)
time.sleep(600)
"""


async def test_a_launchers_children_end_with_agent_and_shim_killed_together(folder: Path) -> None:
    """They have a session of their own and an environment that names no attempt: nobody could find them later."""
    async with agent_running(order_for(folder, LAUNCHER)) as agent:
        await until(lambda: pid_in(folder / "child.pid") is not None)
        child = pid_in(folder / "child.pid")
        assert child is not None
        await agent.kill()
        os.kill(agent.shim, signal.SIGKILL)
        await until(lambda: not alive(child) and not alive(agent.trainer))


async def test_a_stopped_tree_ends_with_its_shim_too(folder: Path) -> None:
    async with agent_running(order_for(folder, LAUNCHER)) as agent:
        await until(lambda: pid_in(folder / "child.pid") is not None)
        child = pid_in(folder / "child.pid")
        assert child is not None
        for pid in (agent.trainer, child):
            os.kill(pid, signal.SIGSTOP)
        os.kill(agent.shim, signal.SIGKILL)
        await until(lambda: not alive(child) and not alive(agent.trainer))


async def test_a_full_disk_at_the_end_makes_no_failure_of_a_training_that_completed(folder: Path) -> None:
    """Neither how it ended nor the complaint about that can be written: it is told all the same."""
    order = order_for(folder, A_MOMENT)
    for name in (".exit.json.tmp", "shim.err"):
        os.symlink("/dev/full", folder / name)
    async with Runner() as runner:
        running = await start(runner, order)
        ended = await running.wait()
        assert (ended.reason, ended.exit_code) == ("exited", 0)
        await running.release()


async def test_how_a_training_has_ended_on_a_full_disk_is_known_after_its_guardian_is_gone(
    folder: Path,
) -> None:
    """The next agent gives back what it knows no end of: a training that had completed began again."""
    order = order_for(folder, A_MOMENT)
    for name in (".exit.json.tmp", "shim.err"):
        os.symlink("/dev/full", folder / name)
    async with Runner() as runner:
        running = await start(runner, order)
        await running.wait()
        await running.release()
        known = await runner.adopt(folder)
    assert isinstance(known, EndedAttempt)
    assert (known.exit.reason, known.exit.exit_code) == ("exited", 0)
