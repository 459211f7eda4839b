"""What a shim does when its lease or the time limit runs out."""

import asyncio
import os
import signal
from pathlib import Path

from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.agent.guard.shim_client import boottime
from simpletuner_fleet.core.jobs.job import Outcome
from tests.agent.shim_fixtures import (
    DOUBLE_FORK,
    TICKER,
    alive,
    order_for,
    pid_in,
    read,
    start,
    until,
)


async def test_a_lease_that_runs_out_pauses_the_tree_and_a_renewal_lets_it_go_on(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, TICKER), 0.3)
        await until(lambda: read(folder / "ticks"))
        await until(lambda: running.paused, "the pause")
        ticks = read(folder / "ticks")
        await asyncio.sleep(0.1)
        assert read(folder / "ticks") == ticks
        running.renew(600)
        await until(lambda: len(read(folder / "ticks")) > len(ticks), "the next tick")
        # Told before the tree goes on; it may lie unread in the socket when the tick is seen.
        await until(lambda: not running.paused, "the word of it")
        running.stop(0)
        ended = await running.wait()
        await running.release()
    assert ended.reason == "stopped"


async def test_a_renewal_that_was_held_up_on_its_way_is_worth_nothing(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, TICKER), 61, boottime() - 60)
        await until(lambda: running.paused)
        running.renew(30, since=boottime() - 60)
        running.renew(30, since=boottime() - 31)
        await asyncio.sleep(0.05)
        assert running.paused
        running.renew(30, since=boottime() - 1)
        await until(lambda: not running.paused)
        running.stop(0)
        await running.wait()
        await running.release()


async def test_a_trainer_whose_lease_ran_out_before_its_start_is_never_started(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, "open('started', 'w')"), 5, boottime() - 6)
        ending = await running.wait()
        assert (running.pid, ending.reason) == (None, "fenced")
        assert "started" not in os.listdir(folder)
        await running.release()


async def test_a_guard_that_meets_a_defect_ends_its_tree_first(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, DOUBLE_FORK + "time.sleep(600)"))
        daemon = await until(lambda: pid_in(folder / "daemon.pid"))
        running._shim.link._writer.write(b"not a message\n")
        ended = await running.wait()
        await running.release()
        assert not alive(daemon)
    assert ended.reason == "shim_lost"
    assert "JSONDecodeError" in read(folder / "shim.err")


async def test_a_paused_trainer_can_be_stopped_in_grace(folder: Path) -> None:
    # Short sleeps: a signal that comes just before a sleep begins is only seen after it.
    program = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(9)); print('on', flush=True)\n"
        "while True: time.sleep(0.05)"
    )
    async with Runner() as runner:
        running = await start(runner, order_for(folder, program), 600)
        await until(lambda: "on" in read(folder / "output.log"))
        running.renew(0)
        await until(lambda: running.paused)
        running.stop(600)
        ended = await running.wait()
        await running.release()
    assert (ended.reason, ended.exit_code) == ("stopped", 9)


async def test_a_lease_that_runs_out_ends_the_tree_where_the_job_says_stop(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, DOUBLE_FORK + TICKER, on_partition="stop"), 600)
        daemon = await until(lambda: pid_in(folder / "daemon.pid"))
        running.renew(0)
        ended = await running.wait()
        assert not alive(daemon)
        await running.release()
    assert (ended.reason, ended.signal) == ("fenced", signal.SIGKILL)


async def test_a_lease_that_runs_out_changes_nothing_where_the_job_says_continue(folder: Path) -> None:
    async with Runner() as runner:
        running = await start(runner, order_for(folder, TICKER, on_partition="continue"), 0)
        await until(lambda: len(read(folder / "ticks")) > 100)
        assert not running.paused
        running.stop(0)
        await running.wait()
        await running.release()


async def test_a_time_limit_ends_the_trainer(folder: Path) -> None:
    order = order_for(folder, "import time; time.sleep(600)", time_limit_s=0.2, kill_grace_s=600)
    async with Runner() as runner:
        running = await start(runner, order)
        ended = await running.wait()
        await running.release()
    assert (ended.reason, ended.signal) == ("time_limit", signal.SIGTERM)


async def test_at_a_time_limit_that_allows_a_checkpoint_the_agent_is_told_and_has_its_time(
    folder: Path,
) -> None:
    limit_reached = asyncio.Event()
    order = order_for(folder, TICKER, time_limit_s=0.2, time_limit_save_s=600.0)
    async with Runner() as runner:
        running = await start(runner, order)
        running.on_out_of_time = limit_reached.set
        async with asyncio.timeout(20):
            await limit_reached.wait()
        ticks = len(read(folder / "ticks"))
        await until(lambda: len(read(folder / "ticks")) > ticks, "it goes on until it is stopped")
        assert running.out_of_time
        running.stop(0, outcome=Outcome.RELEASED)
        ended = await running.wait()
        await running.release()
    assert ended.reason == "stopped"


async def test_a_checkpoint_that_takes_too_long_does_not_outlive_the_time_limit_for_ever(
    folder: Path,
) -> None:
    order = order_for(folder, TICKER, time_limit_s=0.1, time_limit_save_s=0.2, kill_grace_s=0.1)
    async with Runner() as runner:
        running = await start(runner, order)
        ended = await running.wait()
        await running.release()
    assert ended.reason == "time_limit"
