"""Stores the remarks that a worker makes on an attempt; they are shown with the job's events."""

from collections.abc import Sequence

from simpletuner_fleet.core.bounds import MAX_REMARK_CHARS
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.jobs.fencing import Claim
from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import JobNote
from simpletuner_fleet.protocol.uploads import Note
from simpletuner_fleet.storage.fenced import newest_attempt

LOSS_NOT_A_NUMBER = "watchdog_nan"
"""The kind of note by which a worker tells of it."""


async def add_notes(fleet: Fleet, claim: Claim, notes: Sequence[Note]) -> int:
    """Stores notes, and returns how many of them were new: a note that is sent again is stored once."""

    def step(transaction: Transaction) -> int:
        attempt = newest_attempt(transaction.tx, claim)
        _record_losses(transaction, attempt, notes)
        fresh = transaction.tx.add_notes([_row(attempt, note) for note in notes])
        if fresh:
            transaction.publish_job(transaction.job(attempt.job_id), notes=fresh)
        return fresh

    return await fleet.act(step)


def _record_losses(transaction: Transaction, attempt: Attempt, notes: Sequence[Note]) -> None:
    """Records in the audit log, too, that a loss is not a number, so that people can be notified."""
    spoiled = [note for note in notes if note.kind == LOSS_NOT_A_NUMBER]
    if not spoiled:
        return
    known = {note.id for note in transaction.tx.notes_of_job(attempt.job_id)}
    for note in spoiled:
        if _row(attempt, note).id not in known:
            known.add(_row(attempt, note).id)
            transaction.record(
                Event(
                    type=EventType.JOB_LOSS_NAN,
                    actor=Actor(attempt.worker_id, attempt.worker_name),
                    target_type="job",
                    target_id=attempt.job_id,
                    details={"why": note.text[:MAX_REMARK_CHARS], "attempt": attempt.number},
                )
            )


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
