"""Shims that a zygote forks: real processes, of which some are killed, frozen or taken their files."""

import asyncio
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from simpletuner_fleet.agent.guard import shim_starts
from simpletuner_fleet.agent.guard.runner import Runner, RunningTrainer
from simpletuner_fleet.agent.guard.shim_starts import ForkedShim, ShimStarter
from simpletuner_fleet.core.worker_errors import ShimUnavailable
from tests.agent.shim_fixtures import (
    TICKER,
    Reports,
    alive,
    listening,
    order_for,
    parent_of,
    read,
    report_to,
    shim_of,
    start,
    until,
)

GUARD = Path(shim_starts.__file__).parent
CANARY = "canary-of-the-first-attempt"


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    async with Runner() as runner:
        yield runner


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"a_{secrets.token_hex(6)}" for _ in range(3)]


async def end(running: RunningTrainer) -> None:
    running.stop(0)
    await running.wait()
    await running.release()


def zygote_of(running: RunningTrainer) -> int:
    assert running.pid is not None
    return parent_of(shim_of(running.pid))


def sockets_of(pid: int) -> set[str]:
    folder = Path(f"/proc/{pid}/fd")
    return {os.readlink(one) for one in folder.iterdir() if os.readlink(one).startswith("socket:")}


def memory_holds(pid: int, text: bytes) -> bool:
    with open(f"/proc/{pid}/mem", "rb") as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            match = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw", line)
            if match:
                first, last = (int(one, 16) for one in match.groups())
                memory.seek(first)
                if text in memory.read(last - first):
                    return True
    return False


def zygotes_of_this_process() -> list[int]:
    children = psutil.Process().children()
    return [child.pid for child in children if "shim_zygote.py" in " ".join(child.cmdline())]


async def test_one_interpreter_is_started_for_all_attempts(runner: Runner, folders: list[Path]) -> None:
    first = await start(runner, order_for(folders[0], TICKER))
    second = await start(runner, order_for(folders[1], TICKER))
    assert zygote_of(first) == zygote_of(second)
    assert zygotes_of_this_process() == [zygote_of(first)]
    await end(first)
    await end(second)


async def test_nothing_of_one_attempt_is_in_the_guardian_of_another_or_in_the_zygote(
    runner: Runner, folders: list[Path]
) -> None:
    secret_order = order_for(folders[0], TICKER, env={"PATH": os.environ["PATH"], "SECRET": CANARY})
    first = await start(runner, secret_order)
    second = await start(runner, order_for(folders[1], TICKER))
    assert first.pid
    assert second.pid
    zygote, one, another = zygote_of(first), shim_of(first.pid), shim_of(second.pid)
    assert not sockets_of(one) & sockets_of(another)
    assert len(sockets_of(zygote)) == 1, "its own line to the agent"
    assert not sockets_of(zygote) & (sockets_of(one) | sockets_of(another))
    if os.geteuid() == 0:  # nobody else may look, which is a test of its own
        assert memory_holds(one, CANARY.encode())
        assert not memory_holds(zygote, CANARY.encode())
        assert not memory_holds(another, CANARY.encode())
    await end(first)
    await end(second)


async def test_a_killed_zygote_disturbs_no_trainer_and_is_replaced(
    runner: Runner, folders: list[Path]
) -> None:
    first = await start(runner, order_for(folders[0], TICKER))
    zygote = zygote_of(first)
    await runner.dismiss(await runner.take())  # the spare, which was forked already
    os.kill(zygote, signal.SIGKILL)
    await until(lambda: not alive(zygote))
    second = await start(runner, order_for(folders[1], TICKER))
    assert zygote_of(second) == os.getpid(), "meanwhile one is started by itself"
    third = await start(runner, order_for(folders[2], TICKER))
    assert zygote_of(third) in zygotes_of_this_process()
    assert zygote_of(third) != zygote
    ticks = len(read(folders[0] / "ticks"))
    await until(lambda: len(read(folders[0] / "ticks")) > ticks, "the first goes on")
    for running in (first, second, third):
        await end(running)


async def test_a_zygote_that_stands_still_is_not_waited_for(
    runner: Runner, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await start(runner, order_for(folders[0], TICKER))
    await runner.dismiss(await runner.take())
    zygote = zygote_of(first)
    assert runner._starter._zygote is not None
    runner._starter._zygote.line.settimeout(0.2)
    os.kill(zygote, signal.SIGSTOP)
    second = await start(runner, order_for(folders[1], "print('fine')"))
    assert (await second.wait()).last_lines == "fine"
    assert not alive(zygote), "or it would fork for nobody once it goes on"
    await second.release()
    await end(first)


async def test_no_signal_of_a_terminal_or_of_a_service_manager_ends_it(
    runner: Runner, folders: list[Path]
) -> None:
    first = await start(runner, order_for(folders[0], TICKER))
    zygote = zygote_of(first)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(zygote, number)
    await runner.dismiss(await runner.take())
    second = await start(runner, order_for(folders[1], TICKER))
    assert zygote_of(second) == zygote
    await end(first)
    await end(second)


async def test_the_zygote_ends_with_its_agent_and_what_it_forked_goes_on(
    folders: list[Path], tmp_path: Path
) -> None:
    """As when it is killed: its line ends."""
    async with Runner() as runner:
        running = await start(runner, order_for(folders[0], TICKER, adopt_grace_s=600), 600)
        zygote = zygote_of(running)
        assert runner._starter._zygote is not None
        runner._starter._zygote.line.close()
        await until(lambda: not alive(zygote), "the zygote to end")
    async with Runner() as another:
        adopted = await another.adopt(folders[0])
        assert isinstance(adopted, RunningTrainer)
        assert adopted.pid == running.pid
        ticks = len(read(folders[0] / "ticks"))
        await until(lambda: len(read(folders[0] / "ticks")) > ticks)
        await end(adopted)
    assert not zygotes_of_this_process()


async def test_an_installation_that_changes_changes_no_guardian_of_this_agent(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report, too, is made by the code that the zygote was started with."""
    installed = tmp_path / "installed"
    shutil.copytree(GUARD, installed, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(shim_starts, "ZYGOTE", installed / "shim_zygote.py")
    reports = Reports()
    with listening(reports) as url:
        async with Runner() as runner:
            await runner.dismiss(await runner.take())
            for file in installed.glob("*.py"):
                file.write_text("raise RuntimeError('another version')")
            shutil.rmtree(installed / "__pycache__", ignore_errors=True)
            order = order_for(folders[0], TICKER, adopt_grace_s=0.1, report=report_to(url))
            running = await start(runner, order)
            assert zygote_of(running) in zygotes_of_this_process()
        await until(lambda: reports.seen, "the shim's report")
    assert reports.seen[0][2]["status"] == "lost"


async def test_where_no_zygote_can_be_every_guardian_starts_by_itself(
    runner: Runner, folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "shim_zygote.py"
    tries = tmp_path / "tries"
    broken.write_text(f"open({str(tries)!r}, 'a').write('x')")
    monkeypatch.setattr(shim_starts, "ZYGOTE", broken)
    for folder in folders[:2]:
        running = await start(runner, order_for(folder, "print('fine')"))
        assert (await running.wait()).last_lines == "fine"
        await running.release()
    assert read(tries) == "x", "it is not tried again for each job"


async def test_a_machine_that_has_no_room_for_a_process_is_named(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = tmp_path / "shim_zygote.py"
    full.write_text(
        "import errno, os, socket, struct\nline = socket.socket(fileno=0)\nline.recv(1)\n"
        "line.send(struct.pack('=i', -errno.EAGAIN))\nline.recv(1)"
    )
    monkeypatch.setattr(shim_starts, "ZYGOTE", full)
    with pytest.raises(ShimUnavailable, match="Resource temporarily unavailable"):
        await runner.take()


def test_a_forked_process_is_known_by_more_than_its_number() -> None:
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE) as child:
        shim = ForkedShim(child.pid, os.pidfd_open(child.pid))
        assert shim.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            shim.wait(0.01)
        shim.kill()
        assert (shim.wait(10), shim.poll()) == (0, 0)
        shim.kill()  # nobody's by now


LATE_ZYGOTE = """
import socket, time
agent = socket.socket(fileno=0)
_, (line,), _, _ = socket.recv_fds(agent, 1, 1)
socket.socket(fileno=line).sendall(b"a shim that was forked too late")
time.sleep(60)
"""


async def test_a_shim_that_was_forked_too_late_shares_no_line_with_the_one_that_replaced_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = tmp_path / "late.py"
    late.write_text(LATE_ZYGOTE)
    monkeypatch.setattr(shim_starts, "ZYGOTE", late)
    monkeypatch.setattr(shim_starts, "ZYGOTE_ANSWERS_WITHIN_S", 0.5)
    starter = ShimStarter(sys.executable)
    child, line = await asyncio.to_thread(starter.start)
    with line:
        line.settimeout(20)
        assert b"too late" not in line.recv(64)
        starter.close()
    assert child.wait(10) == 0


async def test_who_closes_the_starter_leaves_no_zygote() -> None:
    starter = ShimStarter(sys.executable)
    child, line = await asyncio.to_thread(starter.start)
    with line:
        assert zygotes_of_this_process()
        starter.close()
        assert not zygotes_of_this_process()
        assert child.poll() is None
    assert child.wait(10) == 0
