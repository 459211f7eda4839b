"""Reads what attempts have used. A row that cannot be read is not counted, and takes none of the others with it."""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeVar

from simpletuner_fleet.core.money.reports import UsedAttempt, UsedTime
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.core.placement.usage import Charge
from simpletuner_fleet.store.rows.codec import UNREADABLE, strings
from simpletuner_fleet.store.rows.jobs import RATES

Used = TypeVar("Used", Charge, UsedAttempt, UsedTime)
Row = tuple[Any, ...]
log = logging.getLogger(__name__)

_visibility = lru_cache(Visibility)
_gpus_in = lru_cache(lambda text: len(strings(text)))
"""Of few texts, mostly."""


def charges_in(rows: Iterable[Row]) -> Iterator[Charge]:
    return _readable(rows, _charge)


def used_attempts_in(rows: Iterable[Row]) -> Iterator[UsedAttempt]:
    return _readable(rows, _used_attempt)


def used_times_in(rows: Iterable[Row]) -> Iterator[UsedTime]:
    return _readable(rows, _used_time)


def _readable(rows: Iterable[Row], read: Callable[[Row], Used]) -> Iterator[Used]:
    for row in rows:
        try:
            used = read(row)
        except UNREADABLE as error:
            log.error("what an attempt (%s) has used cannot be read and is not counted: %s", row[0], error)
        else:
            yield used


def _charge(row: Row) -> Charge:
    _id, owner, team, gpus, begun_at, ended_at, hourly, rates = row
    _check_numbers(begun_at, ended_at, hourly)
    return Charge(owner, team, _gpus_in(gpus), begun_at, ended_at, hourly, RATES.to_field(rates))


def _used_attempt(row: Row) -> UsedAttempt:
    _id, owner, team, visibility, config_name, gpu_kind, gpus, begun_at, ended_at, hourly, rates = row
    _check_numbers(begun_at, ended_at, hourly)
    return UsedAttempt(
        owner=owner,
        team=team,
        visibility=_visibility(visibility),
        config_name=config_name,
        gpu_kind=gpu_kind,
        gpus=_gpus_in(gpus),
        begun_at=begun_at,
        ended_at=ended_at,
        hourly_micros=hourly,
        rates=RATES.to_field(rates),
    )


def _used_time(row: Row) -> UsedTime:
    owner, team, visibility, gpus, seconds = row
    return UsedTime(
        owner=owner,
        team=team,
        visibility=_visibility(visibility),
        gpu_seconds=max(0.0, seconds) * _gpus_in(gpus),
    )


def _check_numbers(*numbers: object) -> None:
    """Raises TypeError where one is none: SQLite keeps a text in a column of numbers."""
    for one in numbers:
        if one is not None and type(one) is not float and type(one) is not int:
            raise TypeError(f"a number is stored as {type(one).__name__}")
