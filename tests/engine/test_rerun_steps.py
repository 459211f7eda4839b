"""A step may be broken off and run again: nothing of its first run may be left, whatever it was about."""

from pathlib import Path

import pytest

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.memory.setting_documents import LIMITS_SETTING
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.core.builders import a_job, a_worker


async def test_a_step_that_needs_the_connection_opens_its_worker_in_the_run_that_counts(
    tmp_path: Path,
) -> None:
    store, index = SqliteStore(tmp_path / "fleet.db"), FleetIndex()
    fleet = Fleet(store, index, SteadyClock(), RandomIds(b"s" * 32), StreamHub(), Policy())
    await fleet.act(lambda transaction: transaction.add_worker(a_worker()))
    await fleet.act(lambda transaction: transaction.add_job(a_job(), b"{}"))
    runs: list[bool] = []

    def step(transaction: Transaction) -> None:
        runs.append("w_1" in index.reachable)
        transaction.set_reachable("w_1", True)
        transaction.tx.settings_with_prefix("asks the database")

    await fleet.act(step)
    assert runs == [False, False]
    job = await fleet.read(lambda view: view.job("j_1"))
    assert job is not None
    assert job.worker_id == "w_1"
    await store.close()


async def test_a_step_that_is_refused_leaves_its_worker_as_reachable_as_it_was(tmp_path: Path) -> None:
    store, index = SqliteStore(tmp_path / "fleet.db"), FleetIndex()
    fleet = Fleet(store, index, SteadyClock(), RandomIds(b"s" * 32), StreamHub(), Policy())
    await fleet.act(lambda transaction: transaction.add_worker(a_worker()))
    await fleet.act(lambda transaction: transaction.set_reachable("w_1", True))

    def step(transaction: Transaction) -> None:
        transaction.set_reachable("w_1", False)
        transaction.worker("w_unknown")

    with pytest.raises(NotFound):
        await fleet.act(step)
    assert index.reachable == {"w_1"}
    await store.close()


async def test_limits_that_were_refused_are_forgotten(tmp_path: Path) -> None:
    store, index = SqliteStore(tmp_path / "fleet.db"), FleetIndex()
    fleet = Fleet(store, index, SteadyClock(), RandomIds(b"s" * 32), StreamHub(), Policy())
    await fleet.act(lambda transaction: transaction.add_worker(a_worker()))

    def step(transaction: Transaction) -> None:
        transaction.tx.put_setting(LIMITS_SETTING, '{"global_running": 7}')
        transaction.limits_changed()
        assert transaction.limits.global_running == 7
        transaction.worker("w_unknown")

    with pytest.raises(NotFound):
        await fleet.act(step)
    limits = await fleet.act(lambda transaction: transaction.limits)
    assert limits.global_running is None
    await store.close()
