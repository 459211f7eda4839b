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
from simpletuner_fleet.agent.guard.shim_client import boottime
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

HUNG = "the trainer's guardian did not answer, and was ended with it"


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
        monkeypatch.setattr(runner_module, "SIGNS_WITHIN_S", 0.2)
        with frozen(shim):
            running.stop(0.05)
            async with asyncio.timeout(10.0):
                exit = await running.wait()
        assert (exit.reason, exit.error) == ("stopped", HUNG)
        assert not alive(running.pid)
        await until(lambda: not alive(shim), "the end of the shim")
        await running.release()
    assert began._shim.child is not None
    await asyncio.to_thread(began._shim.child.wait, 10)


@pytest.mark.parametrize("found_again", [False, True])
@pytest.mark.parametrize("on_partition", ["pause", "stop"])
async def test_a_trainer_whose_shim_hangs_goes_on_no_longer_than_its_lease(
    folder: Path, monkeypatch: pytest.MonkeyPatch, on_partition: str, found_again: bool
) -> None:
    order = order_for(folder, TICKER, on_partition=on_partition, adopt_grace_s=60.0)
    async with Runner() as first, Runner() as second:
        began = running = await start(first, order, 4.0 if found_again else 1.0)
        if found_again:
            began.leave_alone()
            taken_up = await second.adopt(folder)
            assert isinstance(taken_up, RunningTrainer)
            running = taken_up
        assert running.pid
        shim = shim_of(running.pid)
        monkeypatch.setattr(runner_module, "SIGNS_WITHIN_S", 0.2)
        with frozen(shim):
            async with asyncio.timeout(10.0):
                exit = await running.wait()
        assert (exit.reason, exit.error) == ("fenced", HUNG)
        assert not alive(running.pid)
        await until(lambda: not alive(shim), "the end of the shim")
        await running.release()
    assert began._shim.child is not None
    await asyncio.to_thread(began._shim.child.wait, 10)


async def test_a_lease_that_is_renewed_while_its_shim_is_asked_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, TICKER), 60.0)
        assert running.pid
        monkeypatch.setattr(runner_module, "SIGNS_WITHIN_S", 2.0)
        with frozen(shim_of(running.pid)):
            running.renew(60.0, since=boottime() - 61.5)
            await asyncio.sleep(0.2)
            running.renew(60.0)
            await asyncio.sleep(2.5)
            assert alive(running.pid)
            assert not running.is_over
        running.stop(0.0)
        assert (await running.wait()).reason == "stopped"
        await running.release()


async def test_a_trainer_whose_shim_hangs_while_it_is_paused_does_not_stand_still_for_ever(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, TICKER), 0.3)
        await until(lambda: running.paused, "the pause")
        assert running.pid
        monkeypatch.setattr(runner_module, "SIGNS_WITHIN_S", 0.2)
        with frozen(shim_of(running.pid)):
            running.renew(60.0)
            async with asyncio.timeout(10.0):
                exit = await running.wait()
        assert (exit.reason, exit.error) == ("fenced", HUNG)
        await running.release()


async def test_a_trainer_whose_shim_hangs_goes_on_no_longer_than_its_time_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, TICKER, time_limit_s=0.5), 600.0)
        assert running.pid
        monkeypatch.setattr(runner_module, "SIGNS_WITHIN_S", 0.2)
        with frozen(shim_of(running.pid)):
            async with asyncio.timeout(10.0):
                exit = await running.wait()
        assert (exit.reason, exit.error) == ("time_limit", HUNG)
        assert not alive(running.pid)
        await running.release()


async def test_a_trainer_whose_shim_hangs_may_save_at_its_time_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent asks for the checkpoint as if it had been told, and waits as long as the shim would have."""
    limit_reached = asyncio.Event()
    order = order_for(folder, TICKER, time_limit_s=0.3, time_limit_save_s=0.5, kill_grace_s=0.1)
    async with Runner() as runner:
        running = await start(runner, order, 600.0)
        running.on_out_of_time = limit_reached.set
        assert running.pid
        monkeypatch.setattr(runner_module, "SIGNS_WITHIN_S", 0.2)
        with frozen(shim_of(running.pid)):
            async with asyncio.timeout(10.0):
                await limit_reached.wait()
                assert running.out_of_time
                assert alive(running.pid)
                exit = await running.wait()
        assert (exit.reason, exit.error) == ("time_limit", HUNG)
        await running.release()


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


async def test_the_end_of_a_trainer_whose_second_guardian_hangs_is_told(folder: Path) -> None:
    program = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.005)\nprint('made it')"
    async with Runner() as runner:
        running = await start(runner, order_for(folder, program), 60.0)
        assert running.pid
        with frozen(parent_of(running.pid)):
            (folder / "go").touch()
            async with asyncio.timeout(10.0):
                exit = await running.wait()
        assert (exit.reason, exit.exit_code, exit.last_lines) == ("exited", 0, "made it")
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
