"""Decides when people are told that a quota is nearly used, or reached: once for each in a period.

It covers quotas of hours, money and storage.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum

from msgspec import Struct

from simpletuner_fleet.core.people.quotas import OF_MONEY, QuotaKind, QuotaStanding

COUNTED_BY_TIME = (*OF_MONEY, QuotaKind.GPU_HOURS_DAY, QuotaKind.GPU_HOURS_MONTH)
WATCHED = (*COUNTED_BY_TIME, QuotaKind.STORED_BYTES)
"""What runs and comes back by the minute is no news. What is stored has no period: it is news again once there was room."""


class QuotaLevel(IntEnum):
    ROOM = 0
    NEARLY = 1
    REACHED = 2


class KnownLevel(Struct, frozen=True, array_like=True):
    ends_at: float
    """Of the period: in the next one all is new."""
    level: QuotaLevel


def level_of(standing: QuotaStanding) -> QuotaLevel:
    quota, used = standing.quota, standing.used
    if used <= 0:
        return QuotaLevel.ROOM
    if used >= quota.ceiling:
        return QuotaLevel.REACHED
    return QuotaLevel.NEARLY if used >= quota.warn_at * quota.ceiling else QuotaLevel.ROOM


def key_of(standing: QuotaStanding) -> str:
    return f"{standing.quota.id} {standing.account}"


def quota_news(
    standings: Iterable[QuotaStanding], known: Mapping[str, KnownLevel]
) -> tuple[list[QuotaStanding], dict[str, KnownLevel]]:
    """Returns the standings to report, and the levels known from now on.

    A raised ceiling makes room for a new report.
    """
    news: list[QuotaStanding] = []
    after: dict[str, KnownLevel] = {}
    for standing in standings:
        key, level, ends_at = key_of(standing), level_of(standing), standing.frees_at or 0.0
        before = known.get(key)
        was = before.level if before and before.ends_at == ends_at else QuotaLevel.ROOM
        if level > was:
            news.append(standing)
        if level is not QuotaLevel.ROOM:
            after[key] = KnownLevel(ends_at, level)
    return news, after
