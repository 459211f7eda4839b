"""Remarks that a worker makes on an attempt, shown with the job's events."""

from collections.abc import Sequence

from simpletuner_fleet.core.jobs.fencing import Claim
from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import JobNote
from simpletuner_fleet.protocol.uploads import Note
from simpletuner_fleet.storage.fenced import newest_attempt


async def add_notes(fleet: Fleet, claim: Claim, notes: Sequence[Note]) -> int:
    """Returns how many of them were new: a note that is sent again is kept once."""

    def step(transaction: Transaction) -> int:
        attempt = newest_attempt(transaction.tx, claim)
        fresh = transaction.tx.add_notes([_row(attempt, note) for note in notes])
        if fresh:
            transaction.publish(
                "job", id=attempt.job_id, status=transaction.job(attempt.job_id).state, notes=fresh
            )
        return fresh

    return await fleet.act(step)


def _row(attempt: Attempt, note: Note) -> JobNote:
    return JobNote(
        id=f"{attempt.number}:{note.id}",
        job_id=attempt.job_id,
        attempt_number=attempt.number,
        at=note.at,
        kind=note.kind,
        text=note.text,
        data=note.data,
    )
