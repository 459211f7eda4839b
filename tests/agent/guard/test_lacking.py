"""A shim that lacks descriptors starts nothing and says why, and goes on guarding what runs."""

import asyncio
import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simpletuner_fleet.agent.guard import orphans
from simpletuner_fleet.agent.guard.orphans import ATTEMPT_TAG, end_rest
from simpletuner_fleet.agent.guard.runner import Runner, RunningTrainer
from simpletuner_fleet.agent.guard.shim_client import ShimLink
from simpletuner_fleet.core.workers.start_trouble import Blame
from tests.agent.shim_fixtures import TICKER, alive, order_for, read, shim_of, start, until

NO_DESCRIPTOR = "Too many open files"


@contextmanager
def no_more_descriptors(pid: int) -> Iterator[None]:
    """A process may use no number for a descriptor that it does not use already."""
    names = os.listdir(f"/proc/{pid}/fd")
    used = {int(name) for name in names if os.path.lexists(f"/proc/{pid}/fd/{name}")}
    free = next(number for number in range(len(used) + 1) if number not in used)
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, usual[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)


@pytest.mark.parametrize(
    ("step", "what"), [("hold", "cannot start a process"), ("go", "cannot make shim.sock")]
)
async def test_a_start_without_descriptors_fails_by_no_fault_of_the_job(
    folder: Path, step: str, what: str
) -> None:
    async with Runner() as runner:
        shim, order = await runner.take(), order_for(folder, "open('began', 'w')")
        assert shim.child is not None
        pid = shim.child.pid
        if step == "hold":
            with no_more_descriptors(pid):
                held = await runner.hold(shim, order)
            running = await runner.go(held, 60.0)
        else:
            held = await runner.hold(shim, order)
            with no_more_descriptors(pid):
                running = await runner.go(held, 60.0)
        exit = await running.wait()
        assert (exit.reason, exit.blame, exit.error) == (
            "start_failed",
            Blame.WORKER,
            f"{what}: {NO_DESCRIPTOR}",
        )
        assert running.pid is None
        await running.release()
        await until(lambda: not alive(pid), "the end of the shim")
    assert not (folder / "began").exists()


async def test_a_shim_that_cannot_meet_a_new_agent_yet_guards_on(folder: Path) -> None:
    async with Runner() as first, Runner() as second:
        began = await start(first, order_for(folder, TICKER, adopt_grace_s=60.0), 60.0)
        assert began.pid
        with no_more_descriptors(shim_of(began.pid)):
            began.leave_alone()
            line = await ShimLink.to(folder)
            await asyncio.sleep(0.5)  # in which nothing may happen
            line.close()
            assert alive(began.pid)
        taken_up = await second.adopt(folder)
        assert isinstance(taken_up, RunningTrainer)
        assert taken_up.pid == began.pid
        taken_up.stop(0.0)
        await taken_up.wait()
        await taken_up.release()
    assert began._shim.child is not None
    await asyncio.to_thread(began._shim.child.wait, 10)


async def test_a_new_agent_without_descriptors_ends_no_trainer(folder: Path) -> None:
    async with Runner() as first, Runner() as second:
        began = await start(first, order_for(folder, TICKER, adopt_grace_s=60.0), 60.0)
        assert began.pid
        began.leave_alone()
        await asyncio.sleep(0.1)  # in which its line is closed
        with no_more_descriptors(os.getpid()):
            adopting = asyncio.create_task(second.adopt(folder))
            await asyncio.sleep(0.5)  # in which nothing may happen
        taken_up = await adopting
        assert isinstance(taken_up, RunningTrainer)
        assert alive(began.pid)
        taken_up.stop(0.0)
        await taken_up.wait()
        await taken_up.release()
    assert began._shim.child is not None
    await asyncio.to_thread(began._shim.child.wait, 10)


async def test_a_shim_without_descriptors_pauses_resumes_and_ends_its_trainer(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, TICKER), 600.0)
        assert running.pid
        await until(lambda: read(folder / "ticks"))
        with no_more_descriptors(shim_of(running.pid)):
            running.renew(0.0)
            await until(lambda: running.paused, "the pause")
            ticks = read(folder / "ticks")
            await asyncio.sleep(0.2)  # in which nothing may happen
            assert read(folder / "ticks") == ticks
            running.renew(600.0)
            await until(lambda: len(read(folder / "ticks")) > len(ticks), "the next tick")
            running.stop(0.0)
            async with asyncio.timeout(10.0):
                assert (await running.wait()).reason == "stopped"
        await running.release()


def test_an_agent_without_descriptors_calls_nothing_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "SWEEP_FOR_S", 0.1)
    left = subprocess.Popen(["sleep", "60"], env={**os.environ, ATTEMPT_TAG: folder.name})
    try:
        with no_more_descriptors(os.getpid()):
            assert not end_rest(folder)
        assert alive(left.pid)
        assert end_rest(folder)
        assert not alive(left.pid)
    finally:
        left.kill()
        left.wait()
