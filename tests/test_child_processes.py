"""Programs that this process asks: those that end at once, and those whose asker gives up."""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest

from simpletuner_fleet import child_processes
from simpletuner_fleet.child_processes import give, running, started
from simpletuner_fleet.cli.programs.server_loop import ServerLoop

PIPES = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE}
SLEEPS = ("sleep", "60")


def lives(pid: int) -> bool:
    """A zombie, which nobody has reaped, lives in this sense."""
    return Path(f"/proc/{pid}").exists()


def hold_the_loop() -> None:
    """Lets the program be further than the start of it is here."""
    time.sleep(0.001)


def own_children() -> bytes:
    pids = [pid for each in Path("/proc/self/task").glob("*/children") for pid in each.read_text().split()]
    return b" ".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)


async def end_of_one_given(data: bytes) -> str:
    async with running("true", **PIPES) as child:
        assert child.stdin
        assert child.stdout
        try:
            await give(child.stdin, data)
        except ConnectionError:
            return "has ended"
        return (await child.stdout.read()).decode() or "said nothing"


@pytest.mark.parametrize("loop", [ServerLoop, asyncio.new_event_loop])
def test_a_program_that_ends_at_once_is_no_failure_of_the_loop(loop: type[ServerLoop]) -> None:
    async def late_for_all() -> Counter[str]:
        ends: Counter[str] = Counter()
        for _start in range(50):
            asking = asyncio.create_task(end_of_one_given(bytes(256 * 1024)))
            for _turn in range(10):
                await asyncio.sleep(0)
                hold_the_loop()
            ends[await asking] += 1
        return ends

    with asyncio.Runner(loop_factory=loop) as runner:
        ends = runner.run(late_for_all())
    assert set(ends) <= {"has ended", "said nothing"}, ends


@pytest.mark.parametrize("loop", [ServerLoop, asyncio.new_event_loop])
def test_whoever_is_cancelled_leaves_no_program(loop: type[ServerLoop]) -> None:
    async def cancelled() -> int:
        runs: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def ask() -> None:
            async with running(*SLEEPS, **PIPES) as child:
                runs.set_result(child.pid)
                await child.communicate()

        asking = asyncio.create_task(ask())
        pid = await runs
        asking.cancel()
        await asyncio.wait({asking})
        return pid

    with asyncio.Runner(loop_factory=loop) as runner:
        assert not lives(runner.run(cancelled()))


async def test_whoever_is_cancelled_while_a_program_is_started_leaves_none() -> None:
    starting = asyncio.create_task(started(*SLEEPS, **PIPES))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    await asyncio.gather(*child_processes._ending)
    assert b"sleep" not in own_children()
