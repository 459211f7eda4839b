"""Keeps the journal of revocations in the storage that all orchestrators share, so that it survives any of them.

Each orchestrator keeps a journal of its own, too, which is lost with its machine. An orchestrator that begins to lead
adds to both what the audit log knows and they do not, and from then on notes every revocation.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from simpletuner_fleet.core.people.revocations import (
    TAKES_AWAY,
    Revocation,
    joined,
    journal_lines,
    noted_in,
    read_lines,
)
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import AuditFilter, Blobs, View

log = logging.getLogger(__name__)

SHARED_JOURNAL = "revocations.jsonl"
LOOKED_BACK_S = 86_400.0
"""So far before its newest line the journal is compared with the audit log: the clocks of two leaders may differ."""
MOST_ENTRIES = 100_000
WRITTEN_WITHIN_S = 10.0
RETRY_S = 5.0
LOOKED_AFTER_S = 60.0
"""A write of the leader before, which hung, may still replace the journal: who leads finds that out so soon."""


async def read_shared_journal(blobs: Blobs) -> list[Revocation] | None:
    """Returns None where the storage has none."""
    content = await blobs.mark(SHARED_JOURNAL)
    return None if content is None else read_lines(content)


class SharedJournal:
    """Keeps the journal of revocations in the shared storage while one orchestrator leads."""

    def __init__(self, fleet: Fleet, blobs: Blobs) -> None:
        self._fleet = fleet
        self._blobs = blobs
        self._lines: list[Revocation] = []
        self._unwritten = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._writes: set[asyncio.Task[None]] = set()
        """Those under way. What waits for them may give up, but a write to a folder cannot be called off: until it has
        ended none may begin, or the older one would replace what the newer one wrote."""

    async def start(self) -> None:
        """Reads the journal and adds what it lacks. Without one it begins now: nobody knows what was revoked before."""
        stored = await read_shared_journal(self._blobs)
        if stored is None:
            head = await self._fleet.read(lambda view: view.audit_head())
            self._lines = [Revocation(at=self._fleet.clock.now(), seq=head.seq if head else 0)]
        else:
            since = max((one.at for one in stored), default=0.0) - LOOKED_BACK_S
            known = await self._fleet.read(lambda view: taken_since(view, since))
            self._lines = joined(stored, known)
        if self._lines != stored:
            await self._write()
        self._task = asyncio.create_task(self._write_again_for_ever())

    async def stop(self) -> None:
        for task in (self._task, *self._writes):
            if task:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def note(self, taken: Sequence[Revocation]) -> None:
        """Stores revocations before it returns, unless the storage is away.

        Then the journal is written later, so that no revocation has to wait for the storage.
        """
        self._lines = joined(self._lines, taken)
        try:
            async with asyncio.timeout(WRITTEN_WITHIN_S):
                await asyncio.shield(self._begun_write())
        except Exception as error:  # whatever it is: it was committed, and this server's own journal has it
            log.warning("the journal of revocations in the storage is behind; it is tried again: %r", error)
            self._unwritten.set()

    def _begun_write(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self._write())
        self._writes.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._writes.discard(task)
        if not task.cancelled():
            task.exception()  # who began it may have gone meanwhile, and has it written again

    async def _write(self) -> None:
        async with self._writing:
            self._unwritten.clear()
            await self._blobs.put_mark(journal_lines(self._lines), SHARED_JOURNAL)

    async def write_if_behind(self) -> None:
        """Writes the journal again where the storage lacks some of it, whoever's write that is due to."""
        stored = await read_shared_journal(self._blobs)
        if stored is None or not set(self._lines) <= set(stored):
            log.warning(
                "the journal of revocations in the storage lacks lines of this leader; it is written again"
            )
            await self._write()

    async def _write_again_for_ever(self) -> None:
        while True:
            behind = True
            try:
                async with asyncio.timeout(LOOKED_AFTER_S):
                    await self._unwritten.wait()
                await asyncio.sleep(RETRY_S)
            except TimeoutError:
                behind = False
            try:
                await (self._write() if behind else self.write_if_behind())
            except Exception as error:
                log.warning("the journal of revocations in the storage is still behind: %r", error)
                self._unwritten.set()


def taken_since(view: View, since: float) -> list[Revocation]:
    """Returns the revocations of the audit log since then, oldest first."""
    known = [
        noted_in(entry)
        for kind in sorted(TAKES_AWAY)
        for entry in view.audit_page(
            AuditFilter(event_type=kind, since=since), MOST_ENTRIES, 0, newest_first=True
        )
    ]
    return sorted(known, key=lambda one: one.seq or 0)
