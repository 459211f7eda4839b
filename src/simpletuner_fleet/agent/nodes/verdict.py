"""Judges how a training over several nodes ended, once each of its parts has. It is pure."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.agent.attempts.endings import CUT_OFF
from simpletuner_fleet.agent.guard.runner import TrainerExit
from simpletuner_fleet.core.jobs.job import EndReason


class PartEnd(Struct, frozen=True, kw_only=True):
    """Describes how one node's part of an attempt ended."""

    rank: int
    """The node's place among those of the attempt; the first node has 0."""
    name: str
    first_process: int
    """The number of its first process among all of the training."""
    exit: TrainerExit | None
    """None: the node was silent for too long, or has forgotten its part."""

    @property
    def is_lost(self) -> bool:
        return self.exit is None

    @property
    def went_well(self) -> bool:
        return self.exit is not None and self.exit.reason is EndReason.EXITED and self.exit.exit_code == 0

    @property
    def failed_by_itself(self) -> bool:
        return (
            self.exit is not None
            and self.exit.reason in (EndReason.EXITED, EndReason.START_FAILED, EndReason.SHIM_LOST)
            and not self.went_well
        )


def verdict(ends: Sequence[PartEnd], *, asked_to_stop: bool) -> TrainerExit:
    """Returns how the whole ended; `ends` are those of all nodes, in the order in which they were reported.

    Where the first node's part ended well, the training did: it alone writes what is kept. A node that is lost takes
    the others down with it, so that what they say of their own end tells nothing about the job.
    """
    first = next(end for end in ends if end.rank == 0)
    assert first.exit is not None, "the first node tells of itself"
    if first.went_well or asked_to_stop or first.exit.reason is EndReason.TIME_LIMIT:
        return first.exit
    for end in ends:
        if end.is_lost:
            return TrainerExit(
                reason=EndReason.AGENT_LOST,
                error=f"node {end.rank} ({end.name}) of the worker was lost",
                last_lines=first.exit.last_lines,
            )
    for end in ends:
        if end.exit is not None and end.exit.reason in CUT_OFF:
            return replace(end.exit, error=f"node {end.rank} ({end.name}): {_how(end.exit)}")
    for end in ends:
        if end.failed_by_itself and end.exit is not None:
            where = f"node {end.rank} ({end.name}), rank {end.first_process}"
            return replace(end.exit, error=f"{where}: {_how(end.exit)}")
    return first.exit


def _how(exit: TrainerExit) -> str:
    if exit.error:
        return exit.error
    if exit.reason in CUT_OFF:
        return "it was cut off for longer than the lease"
    if exit.signal is not None:
        return f"the trainer was ended by signal {exit.signal}"
    return f"the trainer ended with exit code {exit.exit_code}"
