"""Decides who has been silent too long, by the orchestrator's own clock and its listening time alone."""

from collections.abc import Mapping

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import Worker, WorkerType


def heard_time(previous: float, elapsed_s: float, policy: Policy) -> float:
    """Returns the listening clock after another round.

    A round that took far longer than planned (a stalled machine, a frozen process) was not spent listening, so the
    worker is not to blame for a silence in it.
    """
    return previous + min(elapsed_s, 2 * policy.sweep_interval_s)


def silent_workers(last_heard: Mapping[str, float], listening_now: float, policy: Policy) -> dict[str, float]:
    """Returns the seconds of silence by worker id, for each one past the timeout."""
    return {
        worker_id: listening_now - at
        for worker_id, at in last_heard.items()
        if listening_now - at >= policy.heartbeat_timeout_s
    }


def unconfirmed(last_confirmed: Mapping[Turn, float], listening_now: float, policy: Policy) -> list[Turn]:
    """Returns the attempts, by job and epoch, that nobody has confirmed to be running for a whole timeout."""
    return [turn for turn, at in last_confirmed.items() if listening_now - at >= policy.heartbeat_timeout_s]


def unanswered_offers(offered_at: Mapping[Turn, float], listening_now: float, policy: Policy) -> list[Turn]:
    """Returns the offers, by job and epoch, that have waited for an answer as long as an offer may."""
    return [turn for turn, at in offered_at.items() if listening_now - at >= policy.offer_timeout_s]


def outlived(worker: Worker, policy: Policy, now: float) -> bool:
    """Tells whether it is an ephemeral worker that went offline long enough ago to be deleted."""
    return (
        worker.worker_type is WorkerType.EPHEMERAL
        and worker.offline_since is not None
        and now - worker.offline_since >= policy.ephemeral_ttl_s
    )
