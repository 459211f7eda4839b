"""Draws docs/states.md from the tables the program runs by, so that the picture cannot lie.

`./dev diagrams` writes it; with `--check` it only says whether it is up to date.
"""

import sys
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path

from simpletuner_fleet.core.jobs.job import (
    ATTEMPT_TRANSITIONS,
    GIVE_BACK_REASONS,
    HOLDS_ATTEMPT,
    JOB_TRANSITIONS,
    TERMINAL,
    AttemptState,
    EndReason,
    Hold,
    JobInput,
    JobState,
    Outcome,
)
from simpletuner_fleet.core.workers.worker import AdminState, Connection, published_status

TARGET = Path(__file__).parent.parent / "docs" / "states.md"

PREFACE = (
    "Drawn by `./dev diagrams` from the tables the program itself runs by. "
    "Do not edit: change the rules and draw again."
)
STATE_MEANINGS = {
    JobState.BLOCKED: "Waits for an approval or for other jobs.",
    JobState.QUEUED: "Waits for a worker.",
    JobState.DISPATCHED: "Offered to one worker, not accepted yet.",
    JobState.RUNNING: "Accepted: its trainer starts or runs.",
    JobState.CANCELLING: "A stop was asked for; the trainer may still run.",
    JobState.COMPLETED: "The trainer finished well.",
    JobState.FAILED: "Given up; `reason` and `error` say why.",
    JobState.CANCELLED: "Ended by a person, or rejected.",
}
INPUT_MEANINGS = {
    JobInput.UNBLOCK: "It was approved, and every job it depends on has completed.",
    JobInput.OFFER: "A fitting worker is free: a new attempt with a new epoch.",
    JobInput.ACCEPT: "The worker takes the offer.",
    JobInput.REQUEUE: "The offer expired, its worker was lost or gave it back, its time ran out, or it is tried again.",
    JobInput.READOPT: "The worker thought lost is back, its trainer alive: the same attempt goes on.",
    JobInput.COMPLETE: "The trainer finished well, even while a stop was under way.",
    JobInput.GIVE_UP: "The trainer failed, no retries are left, the job is poison, or a dependency failed.",
    JobInput.CANCEL: "A person ends it and no trainer can run, or the trainer that was to stop has ended.",
    JobInput.REQUEST_STOP: "A person ends it and a trainer may run: its worker is told to stop it, or to save and stop it.",
}
HOLD_MEANINGS = {
    Hold.APPROVAL: (JobState.BLOCKED, "Somebody with the right to must approve it."),
    Hold.DEPENDENCY: (JobState.BLOCKED, "A job it depends on has not completed yet."),
    Hold.BACKOFF: (JobState.QUEUED, "It waits a while before the next try."),
    Hold.START_TIME: (JobState.QUEUED, "Its owner lets it start at a certain time, or later."),
    Hold.NONE: (JobState.QUEUED, "Nothing: it is placed as soon as a worker fits."),
}
ATTEMPT_MEANINGS = {
    AttemptState.OFFERED: "Sent to the worker, again and again until it answers or the offer expires.",
    AttemptState.RUNNING: "The worker holds it. Every write names its epoch.",
    AttemptState.ENDED: "Over, with one outcome. A later write that names it is refused as stale.",
}
OUTCOME_MEANINGS = {
    Outcome.COMPLETED: ("nothing", "The trainer finished well."),
    Outcome.FAILED: (
        "a failure",
        "The trainer ended badly: tried again with `retry_on_failure` or by its watchdog. Or its time passed in vain.",
    ),
    Outcome.LOST: (
        "a loss",
        "The worker was silent too long, or its trainer is gone. Nothing if its machine is one that may be taken away.",
    ),
    Outcome.RELEASED: ("nothing", "The worker gave it back; `reason` says why."),
    Outcome.CANCELLED: ("nothing", "Stopped because a person asked for it."),
    Outcome.EXPIRED_OFFER: ("nothing", "The worker never took the offer."),
}
REASON_MEANINGS = {
    EndReason.DRAINED: "Its worker's drain has waited long enough.",
    EndReason.TIME_LIMIT: "Its time is used up; it left a newer checkpoint, and goes on later.",
    EndReason.COST_LIMIT: "Its job was about to cost more than it may, and is over; its checkpoint stays.",
    EndReason.PREEMPTED: "Its worker was told to leave: a shutdown.",
    EndReason.INTERRUPTED: "Its machine was about to be taken away, or was.",
    EndReason.CUT_OFF: "Its worker could not reach the orchestrator for longer than its lease.",
    EndReason.RESUME_FAILED: "The checkpoint to go on from could not be fetched; after some tries an older one is taken.",
}
REASONS_TOLD = (*GIVE_BACK_REASONS, EndReason.COST_LIMIT)


def document() -> str:
    """Returns the whole page."""
    parts = ("# States", PREFACE, *_jobs(), *_workers(), *_attempts())
    return "\n\n".join(parts) + "\n"


def _jobs() -> Iterable[str]:
    yield "## Jobs"
    yield _mermaid(_job_lines())
    yield "A state without an edge out is final: nothing that happens later changes the job."
    yield _table(
        ("state", "meaning", "holds an attempt", "final"),
        (
            (_code(s), STATE_MEANINGS[s], _yes_or_no(s in HOLDS_ATTEMPT), _yes_or_no(s in TERMINAL))
            for s in JobState
        ),
    )
    yield "The inputs of a job, and where each leads from each state. An empty cell is refused."
    live_states = [state for state in JobState if state not in TERMINAL]
    yield _table(
        ("input", *(f"from {_code(state)}" for state in live_states)),
        (
            (job_input.value, *(_state_after(state, job_input) for state in live_states))
            for job_input in JobInput
        ),
    )
    yield _table(("input", "when"), ((job_input.value, INPUT_MEANINGS[job_input]) for job_input in JobInput))
    yield "A job that is not placed may be held:"
    yield _table(
        ("hold", "state", "what it waits for"),
        (
            (_code(hold) if hold else "none", _code(state), why)
            for hold, (state, why) in HOLD_MEANINGS.items()
        ),
    )


def _job_lines() -> Iterable[str]:
    yield f"[*] --> {JobState.BLOCKED}"
    yield f"[*] --> {JobState.QUEUED}"
    for (state, job_input), after in JOB_TRANSITIONS.items():
        yield f"{state} --> {after}: {job_input}"
    for state in JobState:
        if state in TERMINAL:
            yield f"{state} --> [*]"


def _state_after(state: JobState, job_input: JobInput) -> str:
    after = JOB_TRANSITIONS.get((state, job_input))
    return _code(after) if after else ""


def _workers() -> Iterable[str]:
    yield "## Workers"
    yield (
        "Three facts are kept apart: what the admin wants, whether the worker is connected, and whether it holds "
        "an attempt. The published status follows from them and from nothing else."
    )
    yield _table(
        ("admin", "connection", "holds an attempt", "status"),
        (
            (
                _code(admin),
                _code(connection),
                _yes_or_no(holds),
                _code(published_status(admin, connection, holds)),
            )
            for connection, admin, holds in product(Connection, AdminState, (False, True))
        ),
    )


def _attempts() -> Iterable[str]:
    yield "## Attempts"
    yield _mermaid(_attempt_lines())
    yield f"Only an attempt that has ended `{Outcome.LOST}` is readopted."
    yield _table(("state", "meaning"), ((_code(state), ATTEMPT_MEANINGS[state]) for state in AttemptState))
    yield "An attempt that has ended has one outcome. Losses and failures together use up the job's retries."
    yield _table(
        ("outcome", "charges the job", "meaning"),
        ((_code(outcome), *OUTCOME_MEANINGS[outcome]) for outcome in Outcome),
    )
    yield (
        "A live attempt may be asked to stop, by a cancellation or at the end of a drain: with a checkpoint first or "
        "without. The request can be hurried, never slowed. An attempt that was given back says why:"
    )
    yield _table(("reason", "meaning"), ((_code(reason), REASON_MEANINGS[reason]) for reason in REASONS_TOLD))


def _attempt_lines() -> Iterable[str]:
    yield f"[*] --> {AttemptState.OFFERED}: offer"
    for (state, attempt_input), after in ATTEMPT_TRANSITIONS.items():
        yield f"{state} --> {after}: {attempt_input}"
    yield f"{AttemptState.ENDED} --> [*]"


def _mermaid(lines: Iterable[str]) -> str:
    return "\n".join(("```mermaid", "stateDiagram-v2", *(f"    {line}" for line in lines), "```"))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(_row(cells) for cells in (head, ["---"] * len(head), *rows))


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _code(text: str) -> str:
    return f"`{text}`"


def _yes_or_no(fact: bool) -> str:
    return "yes" if fact else "no"


def main(arguments: Sequence[str], target: Path = TARGET) -> int:
    """Writes the page, or with `--check` compares it; the exit status is 1 when it is out of date."""
    page = document()
    if list(arguments) == ["--check"]:
        if target.is_file() and target.read_text(encoding="utf-8") == page:
            return 0
        print(f"{target} is out of date. Draw it again: ./dev diagrams")
        return 1
    if arguments:
        print("usage: ./dev diagrams [--check]")
        return 2
    target.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
