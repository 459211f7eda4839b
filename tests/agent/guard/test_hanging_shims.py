"""Shims that hang: stopped, or stuck with the disk or the driver that they wait for."""

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from simpletuner_fleet.agent.guard import runner as runner_module
from simpletuner_fleet.agent.guard import shim_starts
from simpletuner_fleet.agent.guard.runner import EndedAttempt, Runner, RunningTrainer
from simpletuner_fleet.core.worker_errors import ShimUnavailable
from tests.agent.shim_fixtures import (
    TICKER,
    Undying,
    alive,
    frozen,
    order_for,
    parent_of,
    shim_of,
    start,
    until,
)


@pytest.mark.parametrize("step", ["hold", "go"])
async def test_a_start_whose_shim_hangs_fails_once_nothing_of_it_lives(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(runner_module, "STARTS_WITHIN_S", 0.2, raising=False)
    async with Runner() as runner:
        shim, order = await runner.take(), order_for(folder, TICKER)
        held = await runner.hold(shim, order) if step == "go" else None
        assert shim.child is not None
        below = psutil.Process(shim.child.pid).children(recursive=True)
        os.kill(shim.child.pid, signal.SIGSTOP)
        async with asyncio.timeout(10.0):
            with pytest.raises(ShimUnavailable, match="did not answer for"):
                await (runner.go(held, 60.0) if held else runner.hold(shim, order))
        assert not [pid for pid in (shim.child.pid, *(child.pid for child in below)) if alive(pid)]
    assert not (folder / "ticks").exists()


async def test_a_shim_that_hangs_when_it_may_leave_keeps_nobody_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "SHIM_ANSWERS_WITHIN_S", 0.3)
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "pass"))
        await running.wait()
        assert running._shim.child is not None
        os.kill(running._shim.child.pid, signal.SIGSTOP)
        async with asyncio.timeout(10.0):
            await running.release()
        assert running.is_over
        assert not alive(running._shim.child.pid)


async def test_a_shim_that_is_dismissed_and_hangs_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shim_starts, "SHIM_LEAVES_WITHIN_S", 0.3)
    async with Runner() as runner:
        shim = await runner.take()
        assert shim.child is not None
        os.kill(shim.child.pid, signal.SIGSTOP)
        await runner.dismiss(shim)
        assert not alive(shim.child.pid)


@pytest.mark.parametrize("found_again", [False, True])
async def test_a_trainer_whose_shim_hangs_is_ended_when_it_is_to_stop(
    folder: Path, monkeypatch: pytest.MonkeyPatch, found_again: bool
) -> None:
    async with Runner() as first, Runner() as second:
        began = running = await start(first, order_for(folder, TICKER, adopt_grace_s=60.0), 60.0)
        if found_again:
            began.leave_alone()
            taken_up = await second.adopt(folder)
            assert isinstance(taken_up, RunningTrainer)
            running = taken_up
        assert running.pid
        shim = shim_of(running.pid)
        monkeypatch.setattr(runner_module, "SHIM_ANSWERS_WITHIN_S", 0.2)
        with frozen(shim):
            running.stop(0.05)
            async with asyncio.timeout(10.0):
                exit = await running.wait()
        assert (exit.reason, exit.error) == (
            "stopped",
            "the trainer's guardian did not answer, and was ended with it",
        )
        assert not alive(running.pid)
        await until(lambda: not alive(shim), "the end of the shim")
        await running.release()
    assert began._shim.child is not None
    await asyncio.to_thread(began._shim.child.wait, 10)


async def test_a_trainer_whose_second_guardian_hangs_is_stopped(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, TICKER), 60.0)
        assert running.pid
        with frozen(parent_of(running.pid)):
            running.stop(0.0)
            async with asyncio.timeout(10.0):
                exit = await running.wait()
        assert (exit.reason, exit.signal) == ("stopped", signal.SIGKILL)
        await running.release()


async def test_an_attempt_without_a_shim_is_over_only_when_its_last_process_is_gone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "import time; time.sleep(60)"))
        undying = Undying(folder.name, tmp_path, monkeypatch)
        assert running._shim.child is not None
        running._shim.child.kill()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await running.wait()
        undying.die()
        assert (await running.wait()).reason == "shim_lost"


async def test_a_shim_that_does_not_answer_is_ended_and_its_trainer_is_not_said_to_have_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "SHIM_ANSWERS_WITHIN_S", 0.3)
    async with Runner(key="k") as first:
        running = await start(
            first, order_for(folder, "import time; time.sleep(60)", adopt_grace_s=60.0), 60.0
        )
    assert running.pid is not None
    shim = shim_of(running.pid)
    os.kill(shim, signal.SIGSTOP)
    async with Runner(key="k") as second:
        outcome = await second.adopt(folder)
    assert isinstance(outcome, EndedAttempt)
    assert (outcome.exit.reason, outcome.reported) == ("shim_lost", False)
    assert not alive(running.pid)
    await until(lambda: not alive(shim), "the end of the shim")
    assert not (folder / "exit.json").exists()
    assert running._shim.child is not None
    await asyncio.to_thread(running._shim.child.wait, 10)
