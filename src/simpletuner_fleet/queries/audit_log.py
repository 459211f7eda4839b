"""Verifies the audit log, and reads the entries that somebody asks for."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

from msgspec import Struct

from simpletuner_fleet.core.audit import AuditEntry, ChainCheck, LogCut, Problem, Witness
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import AuditFilter, View
from simpletuner_fleet.storage.audit.heads import AuditHeads
from simpletuner_fleet.storage.audit.tree import AuditTree, LogIncomplete

ENTRIES_PER_LOOK = 500
PROBLEMS_TOLD = 100


class LogVerdict(Struct, frozen=True, kw_only=True):
    checked: int
    problems: list[Problem]
    emptied: int = 0
    """So many of the oldest entries are empty but for their hash: the chain was checked from the one after them on."""


async def verify(fleet: Fleet, heads: AuditHeads | None = None) -> LogVerdict:
    """Returns how many entries were checked and what is wrong, also against every head that somebody remembers."""
    witnesses, forged = await asyncio.to_thread(heads.written) if heads else ([], [])
    witnesses += fleet.witnesses.values()
    if fleet.audit_head:
        witnesses.append(Witness("the orchestrator", fleet.audit_head.seq, fleet.audit_head.hash))
    check = ChainCheck(witnesses)
    after = 0

    def feed(view: View) -> int | None:
        entries = view.audit_range(after, ENTRIES_PER_LOOK)
        check.feed(entries)
        return entries[-1].seq if entries else None

    while (last := await fleet.read(feed)) is not None:
        after = last
        await asyncio.sleep(0)
    problems = [*forged, *check.finish()]
    if check.emptied_upto and check.cut and not await _is_as_cut(fleet, check.cut):
        what = "the hashes of the empty entries up to {last} are not those with which the log was cut"
        last = check.cut.upto
        problems.append(Problem(last, what.format(last=last), "cut_changed", {"last": last}))
    return LogVerdict(checked=check.checked, problems=problems[:PROBLEMS_TOLD], emptied=check.emptied_upto)


async def _is_as_cut(fleet: Fleet, cut: LogCut) -> bool:
    """Tells whether the root that the entry about the cut names is that of all hashes up to there."""
    try:
        return (await AuditTree(fleet).root(cut.upto)).hex() == cut.root
    except LogIncomplete:
        return False


async def entries_in_order(fleet: Fleet, where: AuditFilter) -> AsyncGenerator[list[AuditEntry], None]:
    """Yields the entries oldest first, some hundred at a time, up to the newest at the beginning.

    It reads by number and filters here: a page far into a long log costs no more than the first.
    """
    head = await fleet.read(lambda view: view.audit_head())
    last, after = head.seq if head else 0, 0
    while after < last:
        entries = await fleet.read(partial(_following, after=after))
        if not entries:
            return
        after = entries[-1].seq
        fitting = [entry for entry in entries if entry.seq <= last and where.fits(entry)]
        if fitting:
            yield fitting
        await asyncio.sleep(0)


def _following(view: View, after: int) -> list[AuditEntry]:
    return view.audit_range(after, ENTRIES_PER_LOOK)
