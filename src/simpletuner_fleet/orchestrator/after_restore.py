"""Handles the first start after a restore: the database is older than what its workers do.

So it waits for their reports before it places anything.
"""

import asyncio
import logging

from msgspec.structs import replace

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.jobs.job import AttemptState
from simpletuner_fleet.core.notices.endpoint import EndpointPause
from simpletuner_fleet.core.restoring import HELD_UNTIL, LINKS_SINCE, RESTORED, RestoreNote, placing_from
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.kept_settings import decoded, is_unreadable
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.workers.losing import give_up

log = logging.getLogger(__name__)

TRY_AGAIN_S = 1.0


async def hold_after_restore(fleet: Fleet) -> float | None:
    """Returns until when nothing is placed; None where nothing was restored. It is called before all else.

    A job that waits in this database may run on a worker since after the backup. Within the time in which every worker
    reports or its lease ends, each is told to stop what this database does not know of. An offer of that time is
    withdrawn: its worker may have accepted and ended it since, and would accept it a second time.

    A server that starts while another one's hold stands waits for the whole time once more: this one's clock may be
    hours ahead of or behind the clock by which that hold was to end.
    """
    pending, held = await fleet.read(lambda view: (view.setting(RESTORED), view.setting(HELD_UNTIL)))
    if await fleet.read(lambda view: is_unreadable(view, LINKS_SINCE)):
        # No link of before works: nobody knows which of them a restore has ended. Those of from now on do.
        await fleet.act(lambda transaction: transaction.tx.put_setting(LINKS_SINCE, repr(transaction.now)))
    if pending is None and held is None:
        return None
    now = fleet.clock.now()
    until = placing_from(now, fleet.policy.heartbeat_timeout_s)
    fleet.hold_placements(until)
    if pending is None:
        await fleet.act(lambda transaction: transaction.tx.put_setting(HELD_UNTIL, repr(until)))
        return until
    note = decoded(RESTORED, pending, RestoreNote, None)

    def step(transaction: Transaction) -> None:
        transaction.tx.put_setting(HELD_UNTIL, repr(until))
        transaction.tx.put_setting(LINKS_SINCE, repr(transaction.now))
        transaction.tx.delete_setting(RESTORED)
        for attempt in transaction.tx.live_attempts():
            if attempt.state is AttemptState.OFFERED:
                give_up(transaction, transaction.attempt(attempt.id), "the server was restored from a backup")
        for endpoint in transaction.tx.endpoints():  # somebody may have taken it away since the backup
            why = "the server was restored from a backup: look whether it is still wanted"
            paused = endpoint.paused or EndpointPause(at=transaction.now, why=why)
            transaction.tx.put_endpoint(replace(endpoint, paused=paused, turn=endpoint.turn + 1))
        transaction.record(
            Event(
                type=EventType.SERVER_RESTORED,
                actor=ORCHESTRATOR,
                target_type="server",
                target_id="",
                details=_details(note),
            )
        )

    await fleet.act(step)
    log.warning(
        "this database was restored from a backup: for %.0f s no job is placed, while workers tell what they run",
        until - now,
    )
    return until


def _details(note: RestoreNote | None) -> dict[str, object]:
    """Returns what is known of the restore, which is nothing where its note cannot be read."""
    if note is None:
        return {}
    return {
        "backup_at": note.backup_at,
        "backup_epoch": note.backup_epoch,
        "credentials": note.credentials,
    }


async def place_after_hold(fleet: Fleet, until: float) -> None:
    """Lets the queue continue when the hold is over, even if nothing else happens then."""
    await asyncio.sleep(max(0.0, until - fleet.clock.now()) + 0.1)
    while True:
        try:
            await fleet.act(lambda transaction: transaction.tx.delete_setting(HELD_UNTIL))
            break
        except StoreUnavailable:
            await asyncio.sleep(TRY_AGAIN_S)
    log.info("workers have had their time to tell what they run: jobs are placed again")
