"""Goes round the storage from time to time and takes what no job and no dataset has any more."""

import asyncio
import logging
from contextlib import suppress

from simpletuner_fleet.storage.artifacts import sweep_objects
from simpletuner_fleet.storage.datasets import let_go
from simpletuner_fleet.storage.retention import empty_old_jobs
from simpletuner_fleet.storage.storage import Storage

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 3600.0


async def sweep_storage(storage: Storage) -> int:
    """How many objects went."""
    await empty_old_jobs(storage)
    await let_go(storage, storage.fleet.clock.now() - storage.fleet.policy.object_grace_s)
    return await sweep_objects(storage)


class ObjectSweeper:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._sweep_for_ever())

    async def stop(self) -> None:
        if self._task:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(min(LONGEST_PAUSE_S, self._storage.fleet.policy.object_grace_s))
            try:
                await sweep_storage(self._storage)
            except Exception:
                log.exception("the sweep of stored files failed; it is tried again")
