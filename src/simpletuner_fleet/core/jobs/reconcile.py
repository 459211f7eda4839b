"""Compares what a worker says it holds with what we have on record."""

import re
from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, JobState, Outcome, is_finishing

_COUNT = re.compile(r"[0-9a-f]{8}", re.ASCII)
ELSEWHERE = "elsewhere"
"""An attempt has it for an incarnation if it was begun in another folder than its worker is served from now."""
MOST_STRAYS = 200
"""In one message: each costs a look into the database. The worker names the others again in its next heartbeat."""


def incarnation_of(start: int, random: str) -> str:
    """Names an agent's process by a random part and its number among the starts in its folder (0 if unknown)."""
    return f"{start:08x}.{random}" if start else random


def is_older(incarnation: str, than: str) -> bool:
    """Tells whether this process started before the other in the same folder, as far as starts were counted."""
    mine, theirs = _start(incarnation), _start(than)
    return mine is not None and theirs is not None and mine < theirs


def _start(incarnation: str) -> int | None:
    count, dot, _ = incarnation.partition(".")
    return int(count, 16) if dot and _COUNT.fullmatch(count) else None


class Held(Struct, frozen=True):
    """Identifies an attempt that an agent says it holds."""

    job_id: str
    epoch: int
    started: bool
    paused: bool = False
    """Its lease had ended when the agent said so: the job may have been given away before."""


def is_in_doubt(held: Held, *, listening: bool) -> bool:
    """Tells whether it may have been replaced by an attempt that a restored database does not know.

    `listening` says that nothing is placed yet after a restore.
    Whatever was replaced since the backup had lost its lease first.
    """
    return listening and held.paused


class Reconciliation(Struct, frozen=True, kw_only=True):
    keep: tuple[Attempt, ...] = ()
    """Live here and held there: nothing is disturbed."""
    accept: tuple[Attempt, ...] = ()
    """Offered here, already running there: the acceptance was lost on the way."""
    offer: tuple[Attempt, ...] = ()
    """Offered here, unknown there: sent again."""
    lost: tuple[Attempt, ...] = ()
    """Running here, unknown there: its trainer is gone."""
    doubtful: tuple[Attempt, ...] = ()
    """Running here, unknown to an agent that works in another folder: its own agent may still run it."""
    in_doubt: tuple[Attempt, ...] = ()
    """Running here, and there without a lease, after a restore: given up and stopped."""
    stop: tuple[Held, ...] = ()
    """Held there, not ours to run any more; no more than `MOST_STRAYS`."""


def reconcile(
    live: Sequence[Attempt], held: Sequence[Held], same_home: bool, *, listening: bool
) -> Reconciliation:
    """Compares what is live here with what the agent holds; `listening` is as for `is_in_doubt`."""
    by_key = {(item.job_id, item.epoch): item for item in held}
    keep: list[Attempt] = []
    accept: list[Attempt] = []
    offer: list[Attempt] = []
    lost: list[Attempt] = []
    doubtful: list[Attempt] = []
    in_doubt: list[Attempt] = []
    for attempt in live:
        item = by_key.pop((attempt.job_id, attempt.epoch), None)
        if item is not None and is_in_doubt(item, listening=listening):
            in_doubt.append(attempt)
            by_key[item.job_id, item.epoch] = item
        elif item is None and attempt.state is AttemptState.OFFERED:
            offer.append(attempt)
        elif item is None:
            (lost if same_home and attempt.incarnation != ELSEWHERE else doubtful).append(attempt)
        elif attempt.state is AttemptState.OFFERED and item.started:
            accept.append(attempt)
        else:
            keep.append(attempt)
    return Reconciliation(
        keep=tuple(keep),
        accept=tuple(accept),
        offer=tuple(offer),
        lost=tuple(lost),
        doubtful=tuple(doubtful),
        in_doubt=tuple(in_doubt),
        stop=tuple(islice(by_key.values(), MOST_STRAYS)),
    )


def is_given_back(job: Job, attempt: Attempt) -> bool:
    """Tells whether the worker's goodbye gives this attempt back, so that the job may start elsewhere at once.

    Results of a job that is finishing are on that worker's disk and wait there for its next start. What was begun in
    another folder, an agent with a copy of the token may still run: its lease has to end first.
    """
    return not is_finishing(job) and attempt.incarnation != ELSEWHERE


def may_readopt(
    job: Job, attempt: Attempt, worker_id: str, incarnation: str, *, gpus_free: bool, in_doubt: bool
) -> bool:
    """Tells whether an attempt thought lost goes on: its trainer never stopped, and nobody has its job or its GPUs by now.

    Only the very process that ran it may go on: a new one would have to prove what it cannot know. `gpus_free` says
    that no other attempt has been given one of its GPUs since, or that the trainer has ended and needs none any more.
    `in_doubt` is what `is_in_doubt` says.
    """
    return (
        attempt.worker_id == worker_id
        and attempt.outcome is Outcome.LOST
        and attempt.incarnation == incarnation
        and job.state is JobState.QUEUED
        and job.epoch == attempt.epoch
        and gpus_free
        and not in_doubt
    )
