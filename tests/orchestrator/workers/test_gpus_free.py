"""An attempt that comes back goes on only if nobody has its GPUs; to tell costs the same in a fleet of any size."""

import sys
from types import FrameType

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.workers.report import gpus_free
from simpletuner_fleet.store import MemoryStore
from tests.core.builders import a_gpu, a_job, a_worker, an_attempt

LOST = an_attempt("a_lost", job_id="j_lost")
"""It ran on the GPU of w_1."""


def with_gpu(worker_id: str, uuid: str) -> Worker:
    return a_worker(worker_id, gpus=(replace(a_gpu(), uuid=uuid),))


async def a_fleet(workers: list[Worker], *live: Attempt) -> Fleet:
    fleet = Fleet(MemoryStore(), FleetIndex(), SteadyClock(), RandomIds(b"s" * 32), StreamHub(), Policy())

    def step(transaction: Transaction) -> None:
        for worker in workers:
            transaction.add_worker(replace(worker, token_hash=worker.id))
        for attempt in live:
            transaction.tx.add_job(a_job(attempt.job_id), b"{}")
            transaction.tx.add_attempt(attempt)

    await fleet.act(step)
    return fleet


async def is_free(fleet: Fleet, attempt: Attempt) -> bool:
    return await fleet.act(lambda transaction: gpus_free(transaction, attempt))


async def calls_to_tell(workers: int) -> int:
    """How many calls it takes, by the interpreter's own account of them."""
    fleet = await a_fleet([a_worker(f"w_{number}") for number in range(workers)])
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def step(transaction: Transaction) -> bool:
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            return gpus_free(transaction, LOST)
        finally:
            sys.setprofile(before)

    assert await fleet.act(step)
    return calls


async def test_to_tell_whether_gpus_are_free_costs_the_same_in_a_larger_fleet() -> None:
    assert await calls_to_tell(10) == await calls_to_tell(1_000) > 0


async def test_a_gpu_that_another_worker_of_the_machine_has_been_given_is_not_free() -> None:
    shared = LOST.gpus[0]
    taken = an_attempt("a_other", job_id="j_other", worker_id="w_2", gpus=(shared,))
    workers = [with_gpu("w_1", shared), with_gpu("w_2", shared)]
    assert not await is_free(await a_fleet(workers, taken), LOST)
    assert await is_free(await a_fleet(workers), LOST)


async def test_a_gpu_of_the_same_place_in_another_machine_is_another_gpu() -> None:
    place = "GPU-declared-0"
    taken = an_attempt("a_other", job_id="j_other", worker_id="w_2", gpus=(place,))
    fleet = await a_fleet([with_gpu("w_1", place), with_gpu("w_2", place)], taken)
    assert await is_free(fleet, replace(LOST, gpus=(place,)))
    assert not await is_free(fleet, replace(LOST, gpus=(place,), worker_id="w_2"))
