"""Fences writes: it decides whether a worker's attempt may still write.

A write names its turn, the job and the epoch of one attempt. There are three checks, each stricter than the one before,
and a write must pass the one that guards what it changes:

* `own_attempt`: is it this worker's at all? For reports; `must_be_current` then guards each change of the job's own state.
* `unlost_attempt`: was it never taken from the worker? For what belongs to the attempt alone: its log.
* `newest_attempt`: is it the job's newest, too? For what belongs to the job: uploads, checkpoints, numbers, notes.

`running_attempt` guards reading: only the worker that runs a job now fetches its files.

The attempt's own token, which the trainer and its shim hold, expires with the attempt: it writes nothing after the end.
The worker's own token may upload what an attempt that ended well has left behind, as long as nothing stored is replaced
by it.

Whoever fails a check is stale, and whoever asks about another's attempt is answered as if there were none.
"""

from typing import NamedTuple

from simpletuner_fleet.core.errors import AttemptOver, StaleAttempt
from simpletuner_fleet.core.jobs.job import Attempt, Job, Outcome

OWN_ENDS = frozenset({None, Outcome.COMPLETED, Outcome.FAILED, Outcome.CANCELLED})
"""How an attempt may have ended for its last writes still to count: as its worker said, which kept its turn to the end."""


class Turn(NamedTuple):
    """Identifies one attempt's turn at a job; a write that names a turn which is over changes nothing."""

    job_id: str
    epoch: int


class Claim(NamedTuple):
    """States that it is a worker's turn to write; the fence decides whether that is so."""

    worker_id: str
    turn: Turn
    by_attempt: bool = False
    """It was proven by the attempt's own token."""

    @property
    def job_id(self) -> str:
        return self.turn.job_id


def turn_of(attempt: Attempt) -> Turn:
    return Turn(attempt.job_id, attempt.epoch)


def own_attempt(attempt: Attempt | None, worker_id: str) -> Attempt:
    """Returns the attempt if it is this worker's."""
    if attempt is None or attempt.worker_id != worker_id:
        raise StaleAttempt
    return attempt


def named_attempt(attempt: Attempt, job_id: str, epoch: int | None) -> Attempt:
    """Returns the attempt if it has this turn; who holds an attempt's own token may leave out the epoch."""
    if attempt.job_id != job_id or (epoch is not None and attempt.epoch != epoch):
        raise StaleAttempt
    return attempt


def unlost_attempt(attempt: Attempt | None, claim: Claim) -> Attempt:
    """Returns the worker's attempt if it runs, or ended as the worker itself said."""
    own = own_attempt(attempt, claim.worker_id)
    if own.outcome not in OWN_ENDS:
        raise StaleAttempt
    if claim.by_attempt and not own.live:
        raise AttemptOver
    return own


def newest_attempt(attempt: Attempt | None, job: Job | None, claim: Claim) -> Attempt:
    """Returns the worker's unlost attempt if nobody has had a turn at the job since."""
    unlost = unlost_attempt(attempt, claim)
    if job is None or unlost.epoch != job.epoch:
        raise StaleAttempt
    return unlost


def running_attempt(attempt: Attempt | None, worker_id: str) -> Attempt:
    """Returns the job's current attempt if this worker has it and it has not ended."""
    own = own_attempt(attempt, worker_id)
    if not own.live:
        raise StaleAttempt
    return own


def must_be_current(job: Job, attempt: Attempt) -> None:
    """Raises unless this attempt is the one that the job has now: no other changes the job's state."""
    if attempt.id != job.attempt_id or not attempt.live:
        raise StaleAttempt
