"""Writes many small notes of deliveries together: the store is called a few times a second, however much is sent."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from simpletuner_fleet.core.errors import StoreUnavailable, UnreadableRow
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction

WRITTEN_EVERY_S = 0.1
AT_ONCE = 200

Step = Callable[[Transaction], Any]
Note = tuple[Step, "asyncio.Future[Any]"]


class Ledger:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._waiting: list[Note] = []
        self._writing: asyncio.Task[None] | None = None

    async def write(self, step: Step) -> Any:
        """Returns what the step returns, once that is durable. Raises what the store raises."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((step, done))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_all())
        return await done

    async def stop(self) -> None:
        if self._writing:
            self._writing.cancel()
            with suppress(asyncio.CancelledError):
                await self._writing

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            await self._write(batch)
            await asyncio.sleep(WRITTEN_EVERY_S)

    async def _write(self, batch: list[Note]) -> None:
        """Writes the notes in one transaction. One that fails is told so, and the others are written without it."""
        at_work: list[Note] = []

        def step(transaction: Transaction) -> list[Any]:
            values = []
            for note in batch:
                at_work[:] = [note]
                values.append(note[0](transaction))
            at_work.clear()
            return values

        while batch:
            at_work.clear()
            try:
                values = await self._fleet.act(step)
            except Exception as error:
                store_is_away = isinstance(error, StoreUnavailable) and not isinstance(error, UnreadableRow)
                concerned = batch if store_is_away or not at_work else list(at_work)
                for _, done in concerned:
                    if not done.done():
                        done.set_exception(error)
                batch = [note for note in batch if note not in concerned]
            else:
                for (_, done), value in zip(batch, values, strict=True):
                    if not done.done():
                        done.set_result(value)
                return
