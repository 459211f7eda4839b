"""Decides which of several orchestrators leads, by a lease with a term that is renewed, watched and taken over.

No wall clock is used. The leader counts from when it sent a renewal; a watcher counts from when it saw the last
renewal, which was later; and whoever takes over must have watched for as long as the lease. So while clocks run about
equally fast, the promises of one term end before the next term begins. Whatever clocks do, no write of an ended term is
kept: the term is compared inside every transaction.
"""

from msgspec import Struct

LEASE_S = 1.5
"""Whoever saw no renewal for so long may take over."""
MARGIN_S = 0.2
"""So much earlier its holder stops to promise: for clocks that differ in speed, and for the last answer to leave."""
RENEW_EVERY_S = 0.4
WATCH_EVERY_S = 0.2


class Lease(Struct, frozen=True, kw_only=True):
    """A lease says which orchestrator leads; all orchestrators read the same one."""

    term: int
    """Rises with every leader, and is never used twice."""
    holder: str
    url: str
    """Where the other orchestrators reach the leader."""
    fingerprint: str = ""
    """Of the certificate it shows there, or of the authority that signed it; empty without TLS."""
    renewals: int = 0
    released: bool = False
    """Its holder has stopped, and gave it back."""


class LeaseWatch(Struct, frozen=True, kw_only=True):
    """Remembers the lease as it last changed, and when that was seen on the watcher's own clock."""

    lease: Lease | None
    since: float


def watched(before: LeaseWatch | None, lease: Lease | None, now: float) -> LeaseWatch:
    """Returns the watch after one more look; `now` is read after the look, never before it."""
    if before is not None and before.lease == lease:
        return before
    return LeaseWatch(lease=lease, since=now)


def may_take_over(watch: LeaseWatch, now: float) -> bool:
    """Tells whether nobody leads, the leader has resigned, or it has not renewed for the whole lease."""
    if watch.lease is None or watch.lease.released:
        return True
    return now - watch.since >= LEASE_S


def is_gone(watch: LeaseWatch, looked_at: float) -> bool:
    """Tells whether the leader has not renewed for so long that it leads no more, though nobody took over.

    `looked_at` is when the lease was last looked at: who cannot look does not know, and goes on asking whom it knows.
    """
    return looked_at - watch.since >= 2 * LEASE_S


def next_look_s(watch: LeaseWatch, now: float) -> float:
    """Returns how long until a watcher should look again: at the latest when the lease would be over."""
    return max(0.0, min(WATCH_EVERY_S, watch.since + LEASE_S - now))


def may_promise(renewal_sent_at: float | None, now: float) -> bool:
    """Tells whether nobody else can lead yet; `renewal_sent_at` is when the last successful one was sent."""
    return renewal_sent_at is not None and now < renewal_sent_at + LEASE_S - MARGIN_S


def next_term(term: int, now: float) -> int:
    """Returns one more, but never less than the time in seconds: a restored database must not go back in terms."""
    return max(term + 1, int(now))


def is_outdated(term: int | None, newest: int) -> bool:
    """Tells whether an answer is from a leader that was replaced; one without a term is from a sole orchestrator."""
    return term is not None and term < newest
