"""Decides what a heartbeat changes: most report no change, and change nothing."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.fencing import Turn, turn_of
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState
from simpletuner_fleet.core.jobs.reconcile import MOST_STRAYS, Held, is_in_doubt
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.gpu_health import Health, with_health
from simpletuner_fleet.core.workers.interruption import noticed
from simpletuner_fleet.core.workers.worker import Connection, Worker


class HeartbeatFacts(Struct, frozen=True, kw_only=True):
    """Holds what an agent reports of itself in a heartbeat."""

    held: tuple[Held, ...] = ()
    leaving: bool = False
    """It takes no more offers."""
    runs_nothing: bool = False
    """It says so itself; only older agents, which try a final report once, are taken at this word."""
    health: Mapping[str, Health] = {}
    """By GPU."""
    cache: Mapping[str, Any] = {}
    """Fields of the worker that describe its data cache; none where it says nothing new."""
    ends: str = ""
    """Who has told it that its machine is about to be taken away; empty: nobody."""
    ends_in_s: float = 0.0


class HeartbeatDecision(Struct, frozen=True, kw_only=True):
    worker: Worker | None = None
    """The row to save, where anything of it has changed."""
    came_back: bool = False
    """It was given up and is heard of again."""
    strays: tuple[Held, ...] = ()
    """Attempts it runs that are not live: they go on or are stopped. No more than `MOST_STRAYS`."""
    lost: tuple[Attempt, ...] = ()
    """Attempts that it should run and does not."""
    in_doubt: tuple[Attempt, ...] = ()
    """Attempts that it runs without a lease after a restore; they are among the strays, of this heartbeat or the next."""
    interrupted: bool = False
    """That its machine ends is news."""
    reachable: bool | None = None
    """Whether offers reach it from now on; None: as before."""


def decide_heartbeat(
    worker: Worker,
    live: Sequence[Attempt],
    facts: HeartbeatFacts,
    policy: Policy,
    *,
    expected: bool,
    reachable: bool,
    listening: bool,
    now: float,
) -> HeartbeatDecision:
    """Decides on a heartbeat; `expected` says that its silence was being waited out.

    `reachable` says that offers reach it, as far as is known, and `listening` is as for `is_in_doubt`.
    """
    doubted = {Turn(one.job_id, one.epoch) for one in facts.held if is_in_doubt(one, listening=listening)}
    in_doubt = tuple(attempt for attempt in live if turn_of(attempt) in doubted)
    turns = {turn_of(attempt) for attempt in live} - doubted
    astray = (one for one in facts.held if one.started and (one.job_id, one.epoch) not in turns)
    strays = tuple(islice(astray, MOST_STRAYS))
    offline = worker.connection is Connection.OFFLINE
    # An older agent has no name for its process: a late copy of its registration cannot be told from a new one.
    late_copy = worker.legacy and reachable and worker.connection is Connection.CONNECTING
    away = offline or late_copy or worker.connection is Connection.RECONNECTING
    changed = _with_news(worker, live, facts, away, now)
    return HeartbeatDecision(
        worker=changed if changed != worker else None,
        came_back=offline,
        strays=strays,
        lost=_gone_unsaid(worker, live, facts, policy, now),
        in_doubt=in_doubt,
        interrupted=changed.interruption is not None and worker.interruption is None,
        reachable=_reachable(worker, facts, offline or not expected or bool(strays), reachable),
    )


def _with_news(
    worker: Worker, live: Sequence[Attempt], facts: HeartbeatFacts, away: bool, now: float
) -> Worker:
    ours = {uuid for attempt in live for uuid in attempt.gpus}
    fields: dict[str, Any] = {"gpus": with_health(worker.gpus, facts.health, ours), **facts.cache}
    if away:
        fields |= {"connection": Connection.CONNECTED, "offline_since": None}
    if facts.ends:
        fields["interruption"] = noticed(worker.interruption, facts.ends, facts.ends_in_s, now)
    return replace(worker, **fields)


def _gone_unsaid(
    worker: Worker, live: Sequence[Attempt], facts: HeartbeatFacts, policy: Policy, now: float
) -> tuple[Attempt, ...]:
    """Returns attempts on record as running that a legacy worker no longer runs, without very recent ones.

    A heartbeat sent before the job reached the agent may be read after the job began.
    """
    if not (worker.legacy and facts.runs_nothing):
        return ()
    return tuple(
        attempt
        for attempt in live
        if attempt.state is AttemptState.RUNNING
        and abs(now - (attempt.accepted_at or now)) >= policy.heartbeat_interval_s
    )


def _reachable(worker: Worker, facts: HeartbeatFacts, news: bool, reachable: bool) -> bool | None:
    """Returns whether offers reach the worker from now on; None where that is unchanged.

    An ignored offer made it unreachable; the answer to this heartbeat carries offers too, even without a stream.
    """
    if worker.legacy and not news and not facts.leaving:
        return None
    wanted = not facts.leaving
    return wanted if wanted is not reachable else None
