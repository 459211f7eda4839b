"""SQLite's writing steps run in the event loop; what waits for a disk or a lock must not stop it."""

import asyncio
import sqlite3
import threading
from pathlib import Path

import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.store.observing import Recorder
from tests.store.outsider import until
from tests.store.samples import worker
from tests.store.story_steps import change_worker


def test_the_loop_goes_on_while_another_program_holds_the_lock(tmp_path: Path) -> None:
    async def story() -> int:
        store = SqliteStore(tmp_path / "fleet.db", busy_timeout_s=30.0)
        outsider = sqlite3.connect(tmp_path / "fleet.db", isolation_level=None)
        outsider.execute("BEGIN IMMEDIATE")
        writing = asyncio.create_task(store.write(lambda tx: tx.put_setting("k", "v")))
        turns = 0
        while turns < 20:
            await asyncio.sleep(0.001)
            turns += 1
        assert not writing.done()
        outsider.execute("ROLLBACK")
        outsider.close()
        await writing
        assert await store.read(lambda view: view.setting("k")) == "v"
        await store.close()
        return turns

    assert asyncio.run(story()) == 20


def test_a_store_serves_one_event_loop_after_another(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    for number in range(3):
        asyncio.run(store.write(lambda tx, number=number: tx.put_setting("n", str(number))))  # type: ignore[misc]
    assert asyncio.run(store.read(lambda view: view.setting("n"))) == "2"
    asyncio.run(store.close())


@pytest.mark.parametrize("turns", range(4))
def test_a_loop_that_ends_midway_leaves_the_store_usable(tmp_path: Path, turns: int) -> None:
    store = SqliteStore(tmp_path / "fleet.db")

    async def leave_midway() -> None:
        writing = asyncio.create_task(store.write(lambda tx: tx.put_setting("left", "yes")))
        for _ in range(turns):
            await asyncio.sleep(0)
        writing.cancel()

    asyncio.run(leave_midway())
    asyncio.run(store.write(lambda tx: tx.put_setting("later", "yes")))
    assert asyncio.run(store.read(lambda view: view.setting("later"))) == "yes"
    asyncio.run(store.close())


async def test_a_glance_sees_every_write_that_has_returned_and_nothing_after_the_close(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    for number in range(10):
        await store.write(lambda tx, number=number: tx.put_setting("n", str(number)))  # type: ignore[misc]
        assert store.read_now(lambda view: view.setting("n")) == str(number)
    await store.close()
    with pytest.raises(StoreUnavailable):
        store.read_now(lambda view: view.setting("n"))


class HeldAtTheFirstWorker(Recorder):
    """Is told of rows slowly: of the first one it hears only when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.arrived, self.let_go = threading.Event(), threading.Event()
        self.let_go.set()

    def worker_changed(self, before: Worker | None, after: Worker | None) -> None:
        self.arrived.set()
        assert self.let_go.wait(10), "nobody could let it go: the loop waits for it"
        super().worker_changed(before, after)

    def hold(self) -> None:
        self.arrived.clear()
        self.let_go.clear()


@pytest.mark.parametrize("after_a_loss", [False, True], ids=["at the start", "after a loss"])
async def test_the_loop_goes_on_while_rows_are_loaded_and_no_step_sees_a_part_of_them(
    tmp_path: Path, *, after_a_loss: bool
) -> None:
    file, held = tmp_path / "fleet.db", HeldAtTheFirstWorker()
    store = SqliteStore(file)
    store.observe(held)

    def add_two(tx: Tx) -> None:
        for number in (1, 2):
            tx.add_worker(worker(number))

    await store.write(add_two)
    if after_a_loss:
        with sqlite3.connect(file) as outsider:
            outsider.execute("UPDATE workers SET version = version + 10")
        outsider.close()
        with pytest.raises(StoreUnavailable):
            await store.write(change_worker)
    else:
        await store.close()
        store = SqliteStore(file)
        store.observe(held)
    held.hold()
    seen: list[int] = []
    steps = [asyncio.create_task(store.write(lambda tx: seen.append(len(tx.workers())))) for _ in range(2)]
    await until(held.arrived.is_set)
    assert len(await store.read(lambda view: view.workers())) == 2
    assert len(store.read_now(lambda view: view.workers())) == 2
    assert seen == []
    held.let_go.set()
    await asyncio.gather(*steps)
    assert seen == [2, 2]
    assert len(held.workers) == 2
    await store.close()
