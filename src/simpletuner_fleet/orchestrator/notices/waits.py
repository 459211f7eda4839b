"""Finds jobs that wait too long, from the log entries that began their waits, and notes each once in the log.

The queue is not scanned for this: the log is read a second time, behind by as long as a job may wait.
"""

from collections.abc import Sequence
from itertools import takewhile

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.kept_settings import WAITS_READ, read_setting
from simpletuner_fleet.engine.readable import readable_job
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import AuditFilter, View

LOOK_S = 20.0
AT_ONCE = 500
EVENTS_OF_JOB = 100
NOTED_EVERY = 5_000
FAR_BEHIND = 100_000
BEGINS = frozenset(
    {EventType.JOB_SUBMITTED, EventType.JOB_UNBLOCKED, EventType.JOB_APPROVED, EventType.JOB_REQUEUED}
)


class WaitWatch:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._looked_at = 0.0
        self._cursor: int | None = None
        self._stored = 0

    async def look(self, now: float) -> None:
        if abs(now - self._looked_at) < min(LOOK_S, self._fleet.policy.waits_long_s):
            return
        self._looked_at = now
        before = now - self._fleet.policy.waits_long_s
        while await self._read_on(before):
            pass

    async def _read_on(self, before: float) -> bool:
        """Reads on in the log; returns whether more of it is to be read at once."""
        if self._cursor is None:
            # Stored at once: after a restart, what has become too long meanwhile would be taken for older than that.
            self._cursor = self._stored = await self._fleet.act(
                lambda transaction: _start(transaction, before)
            )
        after = self._cursor
        old, waiting = await self._fleet.read(lambda view: _begun(view, after, before))
        if not old:
            return False
        last = old[-1].seq
        if waiting or last - self._stored >= NOTED_EVERY:
            await self._fleet.act(lambda transaction: _note(transaction, waiting, last))
            self._stored = last
        self._cursor = last
        return len(old) == AT_ONCE


def _begun(view: View, after: int, before: float) -> tuple[list[AuditEntry], list[AuditEntry]]:
    """Returns the entries that are old enough, and those of them that began a wait which still lasts."""
    old = list(takewhile(lambda entry: entry.at <= before, view.audit_range(after, AT_ONCE)))
    return old, [entry for entry in old if entry.event_type in BEGINS and _still_waits(view, entry)]


def _note(transaction: Transaction, waiting: Sequence[AuditEntry], last: int) -> None:
    """Notes those that still wait, but for what was noted already and not confirmed: that is not told twice."""
    noted = read_setting(transaction.tx, WAITS_READ, int, None) or 0
    for entry in waiting:
        if entry.seq > noted and _still_waits(transaction.tx, entry):
            transaction.record(_event(transaction, entry))
    transaction.tx.put_setting(WAITS_READ, str(max(last, noted)))


def _start(transaction: Transaction, before: float) -> int:
    """Returns where to go on reading, and stores it.

    If nobody has asked for this for a long time, or where it was noted so that it cannot be read, only waits that become
    too long from now on are reported.
    """
    tx = transaction.tx
    stored, head = read_setting(tx, WAITS_READ, int, None), tx.audit_head()
    if stored is not None and head and 0 <= head.seq - stored < FAR_BEHIND:
        return stored
    first = tx.audit_page(AuditFilter(since=before), 1, 0, newest_first=False)
    start = first[0].seq - 1 if first else head.seq if head else 0
    tx.put_setting(WAITS_READ, str(start))
    return start


def _still_waits(view: View, entry: AuditEntry) -> bool:
    job = readable_job(view, entry.target_id)
    if job is None or job.state is not JobState.QUEUED:
        return False
    later = view.job_events(entry.target_id, EVENTS_OF_JOB)
    return not any(one.seq > entry.seq and one.event_type in BEGINS for one in later)


def _event(transaction: Transaction, entry: AuditEntry) -> Event:
    return Event(
        type=EventType.JOB_WAITS_LONG,
        actor=ORCHESTRATOR,
        target_type="job",
        target_id=entry.target_id,
        details={"waited_s": round(transaction.now - entry.at)},
    )
