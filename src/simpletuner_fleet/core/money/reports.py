"""Reports who has used how much at what cost between two moments: by person, team, config, GPU or day."""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, Job
from simpletuner_fleet.core.money.rates import Rates, spans_of
from simpletuner_fleet.core.people.visibility import Visibility, VisibilityScope
from simpletuner_fleet.core.placement.usage import day_of

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
    total: UsageLine


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
    lines: dict[str, UsageLine] = {}
    total = UsageLine(key="")
    for one in attempts:
        begun, ended = max(one.begun_at, since), min(now if one.ended_at is None else one.ended_at, until)
        if ended <= begun or not one.gpus:
            continue
        total.attempts += 1
        for key, start, end in _pieces(one, by, begun, ended):
            line = lines.setdefault(key, UsageLine(key=key))
            line.attempts += 1
            for counted in (line, total):
                _add(counted, one, start, end)
    order = _by_day if by is UsedBy.DAY else _by_cost
    return UsageReport(by=by, since=since, until=until, lines=sorted(lines.values(), key=order), total=total)


def _add(line: UsageLine, used: UsedAttempt, begun: float, ended: float) -> None:
    line.gpu_seconds += used.gpus * (ended - begun)
    for span in spans_of(used.hourly_micros, used.rates, begun, ended):
        if span.hourly_micros is None:
            line.unpriced_gpu_seconds += used.gpus * (span.ended_at - span.begun_at)
        else:
            line.micros += span.micros


def _pieces(used: UsedAttempt, by: UsedBy, begun: float, ended: float) -> Iterable[tuple[str, float, float]]:
    if by is not UsedBy.DAY:
        yield _key(used, by), begun, ended
        return
    while begun < ended:
        midnight, next_midnight = day_of(begun)
        yield str(int(midnight)), begun, min(ended, next_midnight)
        begun = next_midnight


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
