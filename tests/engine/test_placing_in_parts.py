"""What one step may place at once is bounded; whoever is left is placed by those after it, in the same order."""

import asyncio

import pytest

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.lifecycle import End
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.runtime import Runtime
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.ports import Store
from tests.engine.test_dispatch import Bench

FEW, WORKERS, JOBS = 3, 8, 10
NOTHING_STARTS, NO_LIMITS = '{"global_running": 0}', "{}"
SOON_S = 20.0


async def held_back(store: Store) -> Bench:
    """More jobs than workers, of several people, and a limit by which none may start."""
    bench = Bench(store)
    bench.fleet.policy = Policy(placed_at_once=FEW)
    await bench.limit(NOTHING_STARTS)
    for number in range(WORKERS):
        await bench.join(f"w_{number}")
    for number in range(JOBS):
        bench.now += 1.0
        await bench.submit(f"j_{number}", f"u_{number % 4}")
    return bench


async def placed(bench: Bench) -> list[int]:
    return [number for number in range(JOBS) if not await bench.waits(f"j_{number}")]


async def test_one_step_places_some_and_those_after_it_the_others_in_their_order(store: Store) -> None:
    bench = await held_back(store)
    unfinished: list[bool] = []
    bench.fleet.on_unfinished = lambda: unfinished.append(True)
    await bench.limit(NO_LIMITS)
    assert await placed(bench) == [*range(FEW)]
    assert (unfinished, bench.fleet.needs_a_step()) == ([True], True)
    await bench.act(lambda transaction: None)
    assert await placed(bench) == [*range(2 * FEW)]
    await bench.act(lambda transaction: None)
    assert await placed(bench) == [*range(WORKERS)]
    assert (len(unfinished), bench.fleet.needs_a_step()) == (2, False)


async def test_a_step_that_is_refused_meanwhile_leaves_as_many_to_the_next(store: Store) -> None:
    bench = await held_back(store)
    await bench.limit(NO_LIMITS)

    def refused(transaction: Transaction) -> None:
        raise NotFound("There is no such thing.")

    with pytest.raises(NotFound):
        await bench.act(refused)
    assert await placed(bench) == [*range(FEW)]
    while bench.fleet.needs_a_step():
        await bench.act(lambda transaction: None)
    assert await placed(bench) == [*range(WORKERS)]


async def test_whoever_comes_meanwhile_stands_behind_those_who_are_left(store: Store) -> None:
    bench = await held_back(store)
    await bench.limit(NO_LIMITS)
    await bench.submit("j_late", "u_late")
    while bench.fleet.needs_a_step():
        await bench.act(lambda transaction: None)
    assert await placed(bench) == [*range(WORKERS)]
    assert await bench.waits("j_late")


async def test_places_that_one_end_frees_are_all_given_again(store: Store) -> None:
    """By a worker's own cause, not by the limit's: it is kept as well where a step has placed as many as it may."""
    bench = await held_back(store)
    bench.fleet.policy = Policy(placed_at_once=1)
    await bench.limit(NO_LIMITS)
    while bench.fleet.needs_a_step():
        await bench.act(lambda transaction: None)

    def end_two(transaction: Transaction) -> None:
        for name in ("j_0", "j_1"):
            job = transaction.job(name)
            attempt = transaction.attempt(job.attempt_id or "")
            transaction.apply(lifecycle.accept(job, attempt, incarnation="", now=transaction.now))
            job, attempt = transaction.job(name), transaction.attempt(attempt.id)
            transaction.apply(lifecycle.completed(job, attempt, End(), now=transaction.now))

    await bench.act(end_two)
    assert await bench.waits("j_9")
    while bench.fleet.needs_a_step():
        await bench.act(lambda transaction: None)
    assert await placed(bench) == [*range(JOBS)]


async def test_a_health_check_goes_on_where_nobody_else_does(store: Store) -> None:
    bench = await held_back(store)
    await bench.limit(NO_LIMITS)
    await sweep_once(bench.fleet)
    assert await placed(bench) == [*range(2 * FEW)]


async def test_the_orchestrator_goes_on_by_itself(store: Store) -> None:
    bench = await held_back(store)
    bench.fleet.policy = Policy(placed_at_once=1)
    all_are_placed, waits = asyncio.Event(), []

    def offered(waited_s: float) -> None:
        waits.append(waited_s)
        if len(waits) == WORKERS:
            all_are_placed.set()

    bench.fleet.on_first_offer = offered
    runtime = Runtime(bench.fleet)
    await runtime.start()
    try:
        await bench.limit(NO_LIMITS)
        async with asyncio.timeout(SOON_S):
            await all_are_placed.wait()
    finally:
        await runtime.stop()
    assert await placed(bench) == [*range(WORKERS)]
