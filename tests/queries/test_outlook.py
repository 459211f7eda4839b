"""When a waiting job would start is read with as few looks into the store for many busy workers as for a few."""

import sys
from types import FrameType

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.placement.forecast import StartForecast
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.queries.outlook import outlook
from simpletuner_fleet.store.memory.view import MemoryView
from tests.core.builders import a_job, a_worker, an_attempt, holding
from tests.queries.test_overview import HOUR_S, NOW, fleet_of
from tests.store.samples import BUNDLE

LOOKS = frozenset({MemoryView.job.__code__, MemoryView.live_attempts_of_worker.__code__})


async def a_busy_fleet(workers: int) -> Fleet:
    """All workers run a job that ends in an hour, or somewhat later, and one job waits."""

    def fill(tx: Tx) -> None:
        for number in range(workers):
            worker = a_worker(f"w_{number}", token_hash=f"hash {number}", registered_at=NOW)
            gpus, attempt_id, job_id = (worker.gpus[0].uuid,), f"a_{number}", f"j_{number}"
            tx.add_worker(worker)
            job = holding(JobState.RUNNING, seq=number + 1, time_limit_s=HOUR_S + number, gpus=gpus)
            held = replace(job, id=job_id, attempt_id=attempt_id, worker_id=worker.id, epoch=number + 1)
            tx.add_job(held, BUNDLE)
            attempt = an_attempt(attempt_id, job_id=job_id, worker_id=worker.id, gpus=gpus, started_at=NOW)
            tx.add_attempt(replace(attempt, epoch=number + 1))
        tx.add_job(a_job("j_waiting", seq=workers + 1), BUNDLE)

    fleet = await fleet_of(fill)
    await fleet.act(lambda transaction: None)
    return fleet


async def looks_of(fleet: Fleet) -> int:
    """Counts the looks for one job or one worker, by the interpreter's own account of calls."""
    looks = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal looks
        looks += event == "call" and frame.f_code in LOOKS

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        prospect = await outlook(fleet, "j_waiting")
    finally:
        sys.setprofile(before)
    assert prospect.start == StartForecast(at=NOW + HOUR_S, worker="w_0", job_id="j_0", job="c", ahead=0)
    return looks


async def test_no_worker_that_is_busy_costs_a_look_of_its_own() -> None:
    assert await looks_of(await a_busy_fleet(40)) == await looks_of(await a_busy_fleet(2))
