"""A look through many rows holds up nobody: no other read, no other caller's look, and no end of the store."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.ports import Store, View
from simpletuner_fleet.store.writing.scanners import SCANNERS
from tests.store.outsider import Rig

SOON_S = 20.0


class HeldScan:
    """A look that lasts until it is let go."""

    def __init__(self, store: Store) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.task = asyncio.ensure_future(store.scan(self._look))

    def _look(self, view: View) -> tuple[str | None, str | None]:
        before = view.setting("s")
        self.begun.set()
        assert self.may_end.wait(SOON_S)
        return before, view.setting("s")

    async def has_begun(self) -> "HeldScan":
        assert await asyncio.to_thread(self.begun.wait, SOON_S)
        return self


async def test_no_read_and_no_write_waits_for_a_scan(rig: Rig) -> None:
    scan = await HeldScan(rig.store).has_begun()
    async with asyncio.timeout(SOON_S):
        await rig.store.write(lambda tx: tx.put_setting("s", "later"))
        assert await rig.store.read(lambda view: view.setting("s")) == "later"
        assert await rig.store.scan(lambda view: view.setting("s")) == "later", "nor another scan"
    scan.may_end.set()
    assert await scan.task == (None, None), "it began before the write, and sees nothing of it"


async def test_a_scan_that_nobody_waits_for_any_more_is_not_run(rig: Rig) -> None:
    held = [await HeldScan(rig.store).has_begun() for _ in range(SCANNERS)]
    given_up = HeldScan(rig.store)
    await asyncio.sleep(0)
    given_up.task.cancel()
    with suppress(asyncio.CancelledError):
        await given_up.task
    for one in held:
        one.may_end.set()
        await one.task
    assert await rig.store.scan(lambda view: view.setting("s")) is None
    assert not given_up.begun.is_set()


async def test_a_store_that_is_closed_waits_for_no_scan_that_has_not_begun(rig: Rig, tmp_path: Path) -> None:
    held = [await HeldScan(rig.store).has_begun() for _ in range(SCANNERS)]
    waiting = HeldScan(rig.store)
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(rig.store._scanners.close())  # type: ignore[attr-defined]
    for _ in range(5):  # turns of the loop, until every scanner knows
        await asyncio.sleep(0)
    for one in held:
        one.may_end.set()
    await closing
    assert [await one.task for one in held] == [(None, None)] * SCANNERS
    with pytest.raises(StoreUnavailable):
        await waiting.task
    assert not waiting.begun.is_set()
