"""Handles the notice that a machine is about to be taken away: its deadline, and how the time is used."""

from msgspec import Struct

LONGEST_NOTICE_S = 900.0
"""Nobody gives more; whoever says so means another clock, or no good."""
LEAST_TO_SAVE_S = 6.0
"""With less time than this nothing is saved first: a checkpoint would hardly be done."""
SAVE_SHARE, STOP_SHARE, UPLOAD_SHARE = 0.5, 0.6, 0.9
"""Of the time that is left: until a checkpoint is saved; until trainers have ended; until what is to be sent is sent."""


class Interruption(Struct, frozen=True, kw_only=True):
    """Describes the announced end of a worker's machine, as the worker reported it."""

    source: str
    """Who has told it: aws, gcp, azure, kubernetes, slurm, runpod, vast, or another word of a newer agent."""
    noticed_at: float
    deadline: float
    """When the machine may be gone."""


def noticed(known: Interruption | None, source: str, in_s: float, now: float) -> Interruption:
    """Returns the interruption; the first notice is kept, and its deadline may come nearer but is never put off."""
    deadline = now + min(max(0.0, in_s), LONGEST_NOTICE_S)
    if known is None:
        return Interruption(source=source, noticed_at=now, deadline=deadline)
    if deadline < known.deadline - 1.0:
        return Interruption(source=known.source, noticed_at=known.noticed_at, deadline=deadline)
    return known


class HandBack(Struct, frozen=True, kw_only=True):
    """Divides the time until a machine's end, in seconds from now."""

    save_s: float | None
    """So long a checkpoint is waited for; None: there is no time for one."""
    grace_s: float
    """From the request to end to the kill, after the checkpoint."""
    upload_s: float
    """From then on nothing more is sent but reports."""
    leave_s: float


def hand_back_within(left_s: float) -> HandBack:
    left_s = min(max(0.0, left_s), LONGEST_NOTICE_S)
    if left_s < LEAST_TO_SAVE_S:
        return HandBack(save_s=None, grace_s=0.0, upload_s=0.0, leave_s=left_s)
    return HandBack(
        save_s=left_s * SAVE_SHARE,
        grace_s=left_s * (STOP_SHARE - SAVE_SHARE),
        upload_s=left_s * UPLOAD_SHARE,
        leave_s=left_s,
    )
