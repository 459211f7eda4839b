"""Whether the audit log is whole."""

import asyncio

from simpletuner_fleet.core.audit import ChainCheck, Problem, Witness
from simpletuner_fleet.orchestrator.fleet import Fleet
from simpletuner_fleet.ports import View

ENTRIES_PER_LOOK = 500
PROBLEMS_TOLD = 100


async def verify(fleet: Fleet) -> tuple[int, list[Problem]]:
    """How many entries were checked and what is wrong with them, against every head that somebody remembers."""
    witnesses = list(fleet.witnesses.values())
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
    return check.checked, check.finish()[:PROBLEMS_TOLD]
