"""Determines since when a machine has been idle, by the attempts that were given to its worker."""

from collections.abc import Sequence

from simpletuner_fleet.core.jobs.job import Attempt, Outcome

ATTEMPTS_LOOKED_AT = 32
"""Of one worker, the newest: those that ran side by side, and any number of failed starts that a machine lives to see."""


def idle_since(joined_at: float, newest: Sequence[Attempt]) -> float:
    """Returns from when on the idle time counts, for a worker that has no job now.

    It begins with the end of the last training. An offer that the worker never took was no use of its machine. A job that
    it took and could not start was none either, or a machine on which nothing ever starts would cost for ever; but while
    it had one it was not idle, so that time is left out.
    """
    since = max([joined_at, *(one.ended_at for one in newest if _trained(one) and one.ended_at is not None)])
    held = sorted(
        (one.accepted_at, one.ended_at)
        for one in newest
        if not _trained(one) and one.accepted_at is not None and one.ended_at is not None
    )
    left_out_s, counted_to = 0.0, since
    for begin, end in held:
        left_out_s += max(0.0, end - max(begin, counted_to))
        counted_to = max(counted_to, end)
    return since + left_out_s


def _trained(attempt: Attempt) -> bool:
    """Tells whether the trainer ran: its report may have been lost, but whatever completed has run."""
    return attempt.started_at is not None or attempt.outcome is Outcome.COMPLETED
