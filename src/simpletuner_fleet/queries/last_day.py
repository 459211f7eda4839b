"""Reads what each worker did in the last day, and what everybody used in the last week."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.workers.worker import Connection, Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import AuditFilter, View
from simpletuner_fleet.queries.explainer import Explainer
from simpletuner_fleet.queries.free_now import machines_of

HOUR_S = 3_600.0
DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
MOST_BARS = 2_000
MOST_CHANGES = 4 * MOST_BARS
"""A worker becomes busy and free again with each attempt."""


class AttemptBar(Struct, frozen=True, kw_only=True):
    job_id: str
    title: str
    start: float
    end: float
    outcome: str
    """It is empty while the attempt runs."""
    gpus: int


class WorkerLane(Struct, frozen=True, kw_only=True):
    """Describes one worker's last day: its attempts, and when it was not connected."""

    worker_id: str
    name: str
    status: str
    bars: tuple[AttemptBar, ...]
    away: tuple[tuple[float, float], ...]
    """The spans in which it was not connected."""


class LastDay(Struct, frozen=True, kw_only=True):
    lanes: list[WorkerLane]
    not_before: float | None = None
    """Attempts that ended before are left out, since there were too many, and so is when workers were away before; None
    where all are there."""


async def lanes_of(fleet: Fleet) -> LastDay:
    """Returns every worker's last day, by name.

    It reads all attempts of a day, which is too slow for every page view.
    """
    now, standing = fleet.clock.now(), fleet.standing()

    def read(view: View) -> LastDay:
        roster = Explainer(view, standing).roster
        return _lanes(view, machines_of(roster), roster, now)

    return await fleet.scan(read)


async def gpu_hours(fleet: Fleet) -> list[tuple[str, float]]:
    """Returns last week's hours by owner, most first.

    It adds up all attempts of the week, which is too slow for every page view.
    """
    now = fleet.clock.now()
    hours: defaultdict[str, float] = defaultdict(float)
    for used in await fleet.scan(lambda view: view.time_used(now - WEEK_S, now)):
        hours[used.owner] += used.gpu_seconds / HOUR_S
    spenders = [(owner, spent) for owner, spent in hours.items() if spent > 0]
    return sorted(spenders, key=lambda one: -one[1])


def _lanes(view: View, workers: Sequence[Worker], roster: Roster, now: float) -> LastDay:
    since = now - DAY_S
    bars: dict[str, list[AttemptBar]] = {}
    attempts = view.attempts_since(since, MOST_BARS)
    ended = [attempt.ended_at for attempt in attempts if attempt.ended_at is not None]
    away, known_since = _away(view, since)
    bars_since = min(ended) if len(ended) >= MOST_BARS else since
    drawn_since = max(bars_since, known_since)
    titles = view.job_titles([attempt.job_id for attempt in attempts])
    for attempt in reversed(attempts):
        begun = attempt.accepted_at or attempt.started_at
        if begun is not None and (attempt.ended_at is None or attempt.ended_at >= drawn_since):
            bars.setdefault(attempt.worker_id, []).append(_bar(attempt, begun, since, now, titles))
    lanes = [
        WorkerLane(
            worker_id=worker.id,
            name=worker.name,
            # Not by its places: a training that has ended leaves its own, and its results may still be on their way.
            status=str(worker.status(roster.has_attempts(worker.id))),
            bars=tuple(bars.get(worker.id, ())),
            away=tuple(_spans_of(worker, away.get(worker.id, []), since, now)),
        )
        for worker in workers
    ]
    return LastDay(lanes=lanes, not_before=drawn_since if drawn_since > since else None)


def _bar(attempt: Attempt, begun: float, since: float, now: float, titles: Mapping[str, str]) -> AttemptBar:
    return AttemptBar(
        job_id=attempt.job_id,
        title=titles.get(attempt.job_id, attempt.job_id),
        start=max(begun, since),
        end=attempt.ended_at or now,
        outcome=str(attempt.outcome or ""),
        gpus=len(attempt.gpus),
    )


def _away(view: View, since: float) -> tuple[dict[str, list[tuple[float, bool]]], float]:
    """Returns for each worker, in order of time, when it left (True) or came, and since when all of that is known.

    In a busy fleet the oldest are left out.
    """
    absences: dict[str, list[tuple[float, bool]]] = {}
    where = AuditFilter(event_type="worker.status_changed", since=since)
    entries = view.audit_page(where, MOST_CHANGES, 0)
    for entry in entries:
        if "offline" in (entry.details.get("to"), entry.details.get("from")):
            absences.setdefault(entry.target_id, []).append((entry.at, entry.details.get("to") == "offline"))
    known_since = entries[-1].at if len(entries) >= MOST_CHANGES else since
    return {worker_id: sorted(changes) for worker_id, changes in absences.items()}, known_since


def _spans_of(
    worker: Worker, changes: Sequence[tuple[float, bool]], since: float, now: float
) -> list[tuple[float, float]]:
    """Returns the spans from departure to return; a worker that is away now has been so since it was last heard."""
    spans: list[tuple[float, float]] = []
    left: float | None = None
    for at, is_leaving in changes:
        if is_leaving:
            left = at if left is None else left
        elif left is not None:
            spans.append((left, at))
            left = None
    if worker.connection is Connection.OFFLINE:
        spans.append((max(since, left if left is not None else worker.offline_since or since), now))
    return spans
