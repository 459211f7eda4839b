"""What a server does first: whoever waits by the clock of the one before waits no longer than they had to."""

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import AttemptState, Hold
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.store import MemoryStore
from tests.core.builders import NOW, POLICY, a_job, an_attempt
from tests.store.samples import BUNDLE

WAIT_S = 20.0


@pytest.mark.parametrize(
    ("set_by_s", "charged", "waits_until"),
    [
        (-7200.0, 4, NOW - 7200.0 + WAIT_S),
        (-7200.0, 0, NOW - 7200.0 + WAIT_S),
        (0.0, 4, NOW + WAIT_S),
        (0.0, 0, NOW + WAIT_S),
        (5.0, 4, NOW + WAIT_S),
    ],
)
async def test_a_job_that_waits_for_its_retry(set_by_s: float, charged: int, waits_until: float) -> None:
    """Of nothing it was charged with where its worker could not start it."""
    store = MemoryStore()
    job = a_job(hold=Hold.BACKOFF, not_before=NOW + WAIT_S, attempts=1, failures=charged, max_retries=9)
    attempt = replace(an_attempt(job_id=job.id), state=AttemptState.ENDED, ended_at=NOW)
    await store.write(lambda tx: tx.add_job(job, BUNDLE))
    await store.write(lambda tx: tx.add_attempt(attempt))
    clock = SteadyClock(wall=lambda: NOW + set_by_s, monotonic=lambda: 0.0)
    fleet = Fleet(store, FleetIndex(), clock, RandomIds(b"s" * 32), StreamHub(), POLICY)
    await fleet.start()
    stored = await store.read(lambda view: view.job(job.id))
    assert stored is not None
    assert (stored.hold, stored.not_before) == (Hold.BACKOFF, waits_until)


async def test_jobs_that_wait_for_their_start_time_cost_a_start_no_step() -> None:
    store, steps = MemoryStore(), list[float]()
    later = NOW + 86_400.0
    job = a_job(hold=Hold.START_TIME, not_before=later, start_at=later)
    await store.write(lambda tx: tx.add_job(job, BUNDLE))
    clock = SteadyClock(wall=lambda: NOW, monotonic=lambda: 0.0)
    fleet = Fleet(store, FleetIndex(), clock, RandomIds(b"s" * 32), StreamHub(), POLICY)
    fleet.on_commit = steps.append
    await fleet.start()
    assert steps == []
    assert await store.read(lambda view: view.job(job.id)) == job
