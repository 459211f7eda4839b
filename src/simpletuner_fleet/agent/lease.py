"""Computes how long a trainer may run without an answer from the orchestrator, and when its guardian is late."""

from typing import NamedTuple

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import EndReason

LEASE_MARGIN_SHARE = 0.15
LEASE_MARGIN_MAX_S = 10.0
LATE_AFTER_S = 1.0
"""A guardian looks at its clock once a second at least."""


def lease_for(heartbeat_timeout_s: float) -> float:
    """Returns a lease that ends before the orchestrator may give the job away."""
    return heartbeat_timeout_s - min(LEASE_MARGIN_MAX_S, LEASE_MARGIN_SHARE * heartbeat_timeout_s)


class Late(NamedTuple):
    """Says from when a guardian is late, and as what its attempt ends where it hangs."""

    since: float
    reason: EndReason


class Deadlines(Struct, kw_only=True):
    """Knows by when a guardian is to have stopped, paused or resumed its trainer. All times are by `boottime`."""

    on_partition: str = "continue"
    """What happens at the lease's end: pause, stop or continue."""
    lease_until: float | None = None
    time_limit_at: float | None = None
    time_limit_save_s: float | None = None
    """How long the agent may save a checkpoint at the time limit; None: it may not."""
    kill_grace_s: float = 0.0
    stop_by: float | None = None
    """By when a stop that was asked for is over."""
    resumed_by: float | None = None
    """By when a trainer that was paused runs again."""

    def renewed(self, until: float, now: float, *, paused: bool) -> None:
        self.lease_until = until
        if paused:
            self.is_paused(now)

    def is_paused(self, now: float) -> None:
        """Notes that its trainer stands still, which is to go on once there is a lease."""
        if self.lease_until is None or self.lease_until <= now:
            self.resumed_by = None
        elif self.resumed_by is None:
            self.resumed_by = now

    def is_resumed(self) -> None:
        self.resumed_by = None

    def stop_asked(self, by: float) -> None:
        self.stop_by = by if self.stop_by is None else min(by, self.stop_by)

    def saves(self, now: float) -> None:
        """Moves the time limit, as the guardian does when it has told the agent of it."""
        self.time_limit_at = now + (self.time_limit_save_s or 0.0) + self.kill_grace_s

    def late(self, *, paused: bool) -> Late | None:
        """Returns the first that passes; None where there is none. Whoever was asked to stop ends as stopped."""
        lease = None if self.on_partition == "continue" else self.resumed_by if paused else self.lease_until
        times = (
            (self.stop_by, 0.0, EndReason.STOPPED),
            (self.time_limit_at, LATE_AFTER_S, EndReason.TIME_LIMIT),
            (lease, LATE_AFTER_S, EndReason.FENCED),
        )
        first = min((Late(at + after, why) for at, after, why in times if at is not None), default=None)
        return Late(first.since, EndReason.STOPPED) if first and self.stop_by is not None else first
