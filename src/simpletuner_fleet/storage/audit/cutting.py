"""Cuts the audit log: entries kept long enough lose all but their hash, up to a head that was signed back then."""

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from simpletuner_fleet.core.audit import LogCut, cut_of, cuts_before
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import AuditFilter, View

log = logging.getLogger(__name__)

DAY_S = 86_400.0
LOOKED_EVERY_S = 3600.0
AT_A_TIME = 500


class AuditCutter:
    """Cuts the audit log: empties the entries that were kept long enough.

    It records in the log that it is cut, and where; then it empties some hundred entries at a time, and resumes after
    a crash.
    """

    def __init__(
        self, fleet: Fleet, heads: Callable[[], Iterable[LogCut]], is_ours: Callable[[LogCut], bool]
    ) -> None:
        """Takes all heads that were written down, and `is_ours`, which tells which of them this server signed."""
        self._fleet = fleet
        self._heads = heads
        self._is_ours = is_ours
        self._looked_at = float("-inf")

    async def look(self) -> int:
        """Cuts what is due; returns how many entries were emptied."""
        days, now = self._fleet.policy.audit_keep_days, self._fleet.clock.now()
        if days is None or now - self._looked_at < LOOKED_EVERY_S:
            return 0
        self._looked_at = now
        known = await self._fleet.read(last_cut)
        limit = await self._fleet.read(_delivered_upto)
        wanted = await asyncio.to_thread(self._choose, now - days * DAY_S, limit, known.upto if known else 0)
        if wanted is not None:
            await self._fleet.act(lambda transaction: transaction.record(_event(wanted)))
        upto, emptied = (wanted or known or LogCut(0, "")).upto, 0
        while upto and (some := await self._fleet.act(lambda transaction: _empty(transaction, upto))):
            emptied += some
        if emptied:
            log.info("the audit log was cut: %d entries up to %d are empty now", emptied, upto)
        return emptied

    def _choose(self, before: float, last_seq: int, already: int) -> LogCut | None:
        candidates = cuts_before(self._heads(), before, last_seq, already)
        return next((one for one in candidates if self._is_ours(one)), None)


def last_cut(view: View) -> LogCut | None:
    newest = view.audit_page(AuditFilter(event_type=EventType.AUDIT_CUT), 1, 0)
    return cut_of(newest[0]) if newest else None


def _delivered_upto(view: View) -> int:
    """Returns the last entry that every endpoint was told of, except for paused ones, which are not waited for."""
    head = view.audit_head()
    cursors = (one.state.cursor for one in view.endpoints() if one.paused is None)
    return min((head.seq - 1 if head else 0), *cursors, head.seq if head else 0)


def _empty(transaction: Transaction, upto: int) -> int:
    return transaction.tx.empty_audit(upto, AT_A_TIME)


def _event(cut: LogCut) -> Event:
    return Event(
        type=EventType.AUDIT_CUT,
        actor=ORCHESTRATOR,
        target_type="server",
        target_id="",
        details=msgspec.to_builtins(cut),
    )
