"""Moves jobs and their attempts from state to state, by one table for each.

The machine of a job is the table `JOB_TRANSITIONS`: a job in a state takes an input and is in another state. What is not
in the table cannot happen; `next_state` raises, and the database refuses the row a second time. This is how to read it.

A job begins `blocked` or `queued`. It is blocked while it waits for something other than a worker: for the approval of a
person, or for jobs that it depends on. `job.Hold` says which. Once nothing of that kind is left it is unblocked, and if a
job it depends on ends badly it is given up, since the wait would be in vain.

A `queued` job waits for a worker. It may be held back for a while, after a failure (`job.Hold.BACKOFF`) or until the time
that its owner has set (`job.Hold.START_TIME`), but it stands in line.
As soon as a worker fits, it is offered to that one worker and is `dispatched`. An offer is an attempt: it has a
number, and an epoch that no other attempt ever has. From here until the end exactly one attempt of the job is alive, and
every message about it must name its epoch.

The worker accepts the offer, and the job is `running`; only then may its trainer start. A worker that does not answer, or
gives the offer back, sends the job back to the queue, and nothing is charged for it.

A `running` job ends in one of three ways. Its trainer finishes, and the job is completed. Its attempt ends otherwise (the
trainer fails, the worker is lost, the worker gives the job back, the time is up) and the job is requeued under a new attempt
to come. Or there is to be no further attempt, because the trainer's failure is not retried or no retries are left, and the
job is given up.

There is one way back that is not an offer. A worker that was thought lost may return with the trainer still alive. If nobody
else has been offered the job meanwhile, the same attempt is readopted: from `queued` straight to `running`, same epoch.

A person may cancel a job at any time. Where no trainer can be running, it is cancelled on the spot: blocked, queued, or
offered to an agent that starts nothing before its acceptance was answered. Otherwise a stop is requested and the job is
`cancelling` until the trainer has ended. That is why no edge leads from `running` to `cancelled`: there is always a trainer
to be asked first. A stop once requested is never followed by another try, so `cancelling` has no edge to `queued` or
`failed`: however the attempt ends, the job is cancelled, unless its trainer finished before it could be stopped.

`completed`, `failed` and `cancelled` are final. No edge leads out of them, and trying an ended job again makes a new job.

The machine of an attempt is the table `ATTEMPT_TRANSITIONS`. An attempt begins `offered` and is `running` once its worker
has accepted it; from either it ends, once, with an outcome (`job.Outcome`). An attempt that has `ended` stays so, with one
exception: one that was lost may be readopted, as said above (`reconcile.may_readopt` says when).

Whoever asks whether a job waits, is at work or has ended uses the groups below, so that a new state is sorted once.
"""

from enum import StrEnum

from simpletuner_fleet.core.errors import IllegalTransition


class JobState(StrEnum):
    BLOCKED = "blocked"
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobInput(StrEnum):
    UNBLOCK = "unblock"
    OFFER = "offer"
    ACCEPT = "accept"
    REQUEUE = "requeue"
    READOPT = "readopt"
    COMPLETE = "complete"
    GIVE_UP = "give up"
    CANCEL = "cancel"
    REQUEST_STOP = "request stop"


JOB_TRANSITIONS: dict[tuple[JobState, JobInput], JobState] = {
    (JobState.BLOCKED, JobInput.UNBLOCK): JobState.QUEUED,
    (JobState.BLOCKED, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.BLOCKED, JobInput.GIVE_UP): JobState.FAILED,
    (JobState.QUEUED, JobInput.OFFER): JobState.DISPATCHED,
    (JobState.QUEUED, JobInput.READOPT): JobState.RUNNING,
    (JobState.QUEUED, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.DISPATCHED, JobInput.ACCEPT): JobState.RUNNING,
    (JobState.DISPATCHED, JobInput.REQUEUE): JobState.QUEUED,
    (JobState.DISPATCHED, JobInput.CANCEL): JobState.CANCELLED,
    (JobState.DISPATCHED, JobInput.REQUEST_STOP): JobState.CANCELLING,
    (JobState.RUNNING, JobInput.COMPLETE): JobState.COMPLETED,
    (JobState.RUNNING, JobInput.REQUEUE): JobState.QUEUED,
    (JobState.RUNNING, JobInput.GIVE_UP): JobState.FAILED,
    (JobState.RUNNING, JobInput.REQUEST_STOP): JobState.CANCELLING,
    (JobState.CANCELLING, JobInput.COMPLETE): JobState.COMPLETED,
    (JobState.CANCELLING, JobInput.CANCEL): JobState.CANCELLED,
}


class AttemptState(StrEnum):
    OFFERED = "offered"
    RUNNING = "running"
    ENDED = "ended"


class AttemptInput(StrEnum):
    ACCEPT = "accept"
    END = "end"
    READOPT = "readopt"


ATTEMPT_TRANSITIONS: dict[tuple[AttemptState, AttemptInput], AttemptState] = {
    (AttemptState.OFFERED, AttemptInput.ACCEPT): AttemptState.RUNNING,
    (AttemptState.OFFERED, AttemptInput.END): AttemptState.ENDED,
    (AttemptState.RUNNING, AttemptInput.END): AttemptState.ENDED,
    (AttemptState.ENDED, AttemptInput.READOPT): AttemptState.RUNNING,
}

WAITING: tuple[JobState, ...] = (JobState.QUEUED, JobState.BLOCKED)
AT_WORK: tuple[JobState, ...] = (JobState.RUNNING, JobState.DISPATCHED, JobState.CANCELLING)
"""An attempt of the job is alive."""
HAVE_TRAINER: tuple[JobState, ...] = (JobState.RUNNING, JobState.CANCELLING)
LIVE = WAITING + AT_WORK
"""Kept in memory by whoever leads, and loaded at its start."""
ENDED: tuple[JobState, ...] = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)
CUT_SHORT: tuple[JobState, ...] = (JobState.FAILED, JobState.CANCELLED)
"""Its training may have further to go: it can be taken up from its last checkpoint."""
TERMINAL = frozenset(ENDED)
HOLDS_ATTEMPT = frozenset(AT_WORK)


def next_state(state: JobState, job_input: JobInput) -> JobState:
    try:
        return JOB_TRANSITIONS[state, job_input]
    except KeyError:
        raise IllegalTransition(f"A job that is {state} cannot take '{job_input}'.") from None


def next_attempt_state(state: AttemptState, attempt_input: AttemptInput) -> AttemptState:
    try:
        return ATTEMPT_TRANSITIONS[state, attempt_input]
    except KeyError:
        raise IllegalTransition(f"An attempt that is {state} cannot take '{attempt_input}'.") from None
