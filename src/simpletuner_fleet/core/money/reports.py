"""Reports who has used how much at what cost between two moments: by person, team, config, GPU or day."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.money.amounts import cost_micros
from simpletuner_fleet.core.money.rates import Rates, spans_of
from simpletuner_fleet.core.people.visibility import Visibility, VisibilityScope

DAY_S = 86_400.0
MAX_SPAN_S = 400 * DAY_S
NOT_SHOWN = "*"
"""Stands for a person and a config that one may not see, though the use counts for one's team."""


class UsedBy(StrEnum):
    PERSON = "person"
    TEAM = "team"
    CONFIG = "config"
    GPU = "gpu"
    DAY = "day"


class UsedAttempt(Struct, frozen=True, kw_only=True):
    """Describes one attempt that had GPUs, as far as a report needs it."""

    owner: str
    team: str
    visibility: Visibility
    config_name: str
    gpu_kind: str
    gpus: int
    begun_at: float
    ended_at: float | None
    """None while it goes on."""
    hourly_micros: int | None
    rates: Rates = ()
    """Later prices."""


def used_attempt(job: Job, attempt: Attempt, begun_at: float) -> UsedAttempt:
    return UsedAttempt(
        owner=job.owner,
        team=job.team,
        visibility=job.visibility,
        config_name=job.config_name,
        gpu_kind=attempt.gpu_kind,
        gpus=len(attempt.gpus),
        begun_at=begun_at,
        ended_at=attempt.ended_at,
        hourly_micros=attempt.hourly_micros,
        rates=attempt.rates,
    )


class UsedTime(Struct, frozen=True, kw_only=True):
    """Holds the GPU time that attempts of one owner and team used together between two moments."""

    owner: str
    team: str
    visibility: Visibility
    gpu_seconds: float


class UsageLine(Struct, kw_only=True):
    key: str
    """The id of the person or team, the name of the config or the kind of GPU, or when the day began in seconds."""
    attempts: int = 0
    gpu_seconds: float = 0.0
    micros: int = 0
    unpriced_gpu_seconds: float = 0.0
    """Used at a price that nobody knows: the cost is at least what it says."""


class UsageReport(Struct, frozen=True, kw_only=True):
    by: UsedBy
    since: float
    until: float
    lines: list[UsageLine]
    """The days one after another, of all else what cost most first."""
    total: UsageLine


class _Counted(Struct):
    """Holds what is counted so far towards one report."""

    by: UsedBy
    total: UsageLine
    lines: dict[str, UsageLine]


def seen_use(scope: VisibilityScope, used: UsedAttempt) -> UsedAttempt | None:
    """Returns what a caller is told of a use: everything of their own, and what they may see of their teams'."""
    owner = seen_owner(scope, used)
    if owner is None:
        return None
    return used if owner == used.owner else replace(used, owner=owner, config_name=NOT_SHOWN)


def seen_owner(scope: VisibilityScope, used: UsedAttempt | UsedTime) -> str | None:
    """Returns whose use it is, as far as the caller may know; None where the use itself is hidden from them."""
    if scope.above or used.owner in scope.ids:
        return used.owner
    if not used.team or used.team not in scope.teams:
        return None
    return NOT_SHOWN if used.visibility is Visibility.PRIVATE else used.owner


def report(
    attempts: Iterable[UsedAttempt], by: UsedBy, since: float, until: float, now: float
) -> UsageReport:
    """Counts each attempt as far as it lies between the two moments, and what still runs until now."""
    return reports(attempts, (by,), since, until, now)[0]


def reports(
    attempts: Iterable[UsedAttempt], ways: Sequence[UsedBy], since: float, until: float, now: float
) -> list[UsageReport]:
    """Returns a report for each way of grouping, after one walk through the attempts: there may be a million."""
    counts = [_Counted(by, UsageLine(key=""), {}) for by in ways]
    for one in attempts:
        begun, ended = max(one.begun_at, since), min(now if one.ended_at is None else one.ended_at, until)
        if ended <= begun or not one.gpus:
            continue
        for counted in counts:
            counted.total.attempts += 1
            if counted.by is UsedBy.DAY:
                _count_by_day(counted, one, begun, ended)
            else:
                _count(counted, _key(one, counted.by), one, begun, ended)
    return [
        UsageReport(
            by=counted.by,
            since=since,
            until=until,
            lines=sorted(counted.lines.values(), key=_by_day if counted.by is UsedBy.DAY else _by_cost),
            total=counted.total,
        )
        for counted in counts
    ]


def _count(counted: _Counted, key: str, used: UsedAttempt, begun: float, ended: float) -> None:
    total, line = counted.total, counted.lines.get(key)
    if line is None:
        line = counted.lines[key] = UsageLine(key=key)
    line.attempts += 1
    gpu_seconds, micros, unpriced = _use_between(used, begun, ended)
    line.gpu_seconds += gpu_seconds
    total.gpu_seconds += gpu_seconds
    line.micros += micros
    total.micros += micros
    line.unpriced_gpu_seconds += unpriced
    total.unpriced_gpu_seconds += unpriced


def _use_between(used: UsedAttempt, begun: float, ended: float) -> tuple[float, int, float]:
    """Returns the seconds on GPUs, what they cost, and those of them at a price that nobody knows."""
    seconds = used.gpus * (ended - begun)
    if not used.rates:  # nearly always
        hourly = used.hourly_micros
        return (seconds, 0, seconds) if hourly is None else (seconds, cost_micros(hourly, begun, ended), 0.0)
    micros, unpriced = 0, 0.0
    for span in spans_of(used.hourly_micros, used.rates, begun, ended):
        if span.hourly_micros is None:
            unpriced += used.gpus * (span.ended_at - span.begun_at)
        else:
            micros += span.micros
    return seconds, micros, unpriced


def _count_by_day(counted: _Counted, used: UsedAttempt, begun: float, ended: float) -> None:
    while begun < ended:
        midnight = begun // DAY_S * DAY_S  # days are those of UTC, which have no other length
        _count(counted, str(int(midnight)), used, begun, min(ended, midnight + DAY_S))
        begun = midnight + DAY_S


def _key(used: UsedAttempt, by: UsedBy) -> str:
    match by:
        case UsedBy.PERSON:
            return used.owner
        case UsedBy.TEAM:
            return used.team
        case UsedBy.CONFIG:
            return used.config_name
        case _:
            return used.gpu_kind


def _by_cost(line: UsageLine) -> tuple[int, float, str]:
    return -line.micros, -line.gpu_seconds, line.key


def _by_day(line: UsageLine) -> int:
    return int(line.key)
