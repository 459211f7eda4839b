"""A commit may have stored what nobody was told of: what it stored is followed all the same."""

import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import AttemptState, JobState
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.store import MemoryStore
from tests.core.builders import NOW, POLICY, a_job, a_worker, an_attempt, holding
from tests.store.samples import BUNDLE


async def test_an_offer_whose_commit_was_not_answered_expires_like_any_other() -> None:
    store, now = MemoryStore(), NOW
    clock = SteadyClock(wall=lambda: now, monotonic=lambda: now)
    fleet = Fleet(store, FleetIndex(), clock, RandomIds(b"s" * 32), StreamHub(), POLICY)
    await fleet.start()
    await fleet.act(lambda transaction: transaction.add_worker(a_worker()))
    await fleet.act(lambda transaction: transaction.add_job(a_job(), BUNDLE))
    store.fail_next_commits(1)
    with pytest.raises(StoreUnavailable):
        await fleet.act(lambda transaction: transaction.set_reachable("w_1", True))

    def what_was_stored(tx: Tx) -> None:
        tx.save_job(holding(JobState.DISPATCHED))
        tx.add_attempt(an_attempt(state=AttemptState.OFFERED, incarnation=""))

    await store.write(what_was_stored)
    await fleet.act(lambda transaction: None)
    assert fleet.presence.confirmed(Turn("j_1", 1), "w_1")
    while now < NOW + POLICY.offer_timeout_s + 2 * POLICY.sweep_interval_s:
        now += POLICY.sweep_interval_s
        fleet.presence.begin_round(now)
    assert fleet.presence.old_offers() == [Turn("j_1", 1)]
