"""Decides when a message is sent: at once, after quiet hours or in a digest, and when again after a failure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from math import floor

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.notices.endpoint import (
    DeliveryState,
    Endpoint,
    EndpointPause,
    NoticeRules,
    QuietHours,
)
from simpletuner_fleet.core.notices.kinds import Notice

DAY_MINUTES = 24 * 60
HOUR_S = 3_600.0
PAUSES_S = (5.0, 30.0, 120.0, 600.0, 1_800.0, HOUR_S, 3 * HOUR_S, 6 * HOUR_S)
"""After the first failure, the second and so on; the last for all that follow."""
GIVEN_UP_AFTER_S = 3 * 24 * HOUR_S
TROUBLE_AFTER_S = 15 * 60.0
"""From then on an endpoint that fails is shown to people."""
MAX_ERROR_CHARS = 300


class SendNow(Struct, frozen=True):
    """Decides to send the first `count` of the waiting notices, in one message."""

    count: int
    held_back: bool = False
    """Others may join them until it is written down which they are."""


class Wait(Struct, frozen=True):
    until: float


def quiet_until(quiet: QuietHours | None, at: float, zone: tzinfo) -> float:
    """Returns the end of the quiet hours that this moment lies in, and the moment itself where it lies in none.

    Where the clocks change meanwhile, they are over as soon as the clocks show a time beyond them.
    """
    if quiet is None:
        return at
    while _is_within(quiet, _local(at, zone)):
        over = floor(at) + _seconds_until(quiet.end, _local(floor(at), zone))
        change = _change_of_clocks(floor(at), over, zone)
        if change is None:
            return float(over)
        at = float(change)
    return at


def due_at(rules: NoticeRules, at: float, zone: tzinfo) -> float:
    """Returns when somebody is told of what happened at that moment."""
    match rules.digest:
        case "hourly":
            at = (at // HOUR_S + 1) * HOUR_S
        case "daily":
            at = _next_at(rules.digest_at, at, zone)
    return quiet_until(rules.quiet, at, zone)


def next_message(rules: NoticeRules, held: Sequence[Notice], now: float, zone: tzinfo) -> SendNow | Wait:
    """Returns whether to send now, and how much; `held` are the waiting notices, oldest first, at least one.

    What quiet hours or a digest have held back is one message; everything else is told by itself.
    """
    quiet_end = quiet_until(rules.quiet, now, zone)
    if quiet_end > now:
        return Wait(quiet_end)
    first = held[0]
    due = due_at(rules, first.at, zone)
    if due <= first.at:
        return SendNow(1)
    if due > now:
        return Wait(due)
    late = next((at for at, one in enumerate(held) if due_at(rules, one.at, zone) > now), len(held))
    return SendNow(late, held_back=True)


def may_try(state: DeliveryState, now: float) -> float:
    """Returns when the next try is due; a time too far ahead was set by a clock that has been corrected since."""
    return state.not_before if state.not_before - now <= PAUSES_S[-1] else now


def after_success(endpoint: Endpoint, cursor: int, now: float) -> Endpoint:
    return replace(endpoint, state=DeliveryState(cursor=cursor, delivered_at=now))


def after_failure(
    endpoint: Endpoint, error: str, now: float, *, hopeless: bool = False, wait_s: float = 0.0
) -> Endpoint:
    """Makes the endpoint wait longer after each failure, and at least as long as the other side asks for.

    After days of failures, or where the other side says that nobody wants messages there, the endpoint is paused until
    a person looks.
    """
    state = endpoint.state
    since = state.failing_since if state.failing_since is not None else now
    tries = state.tries + 1
    error = error[:MAX_ERROR_CHARS]
    pause_s = max(PAUSES_S[min(tries, len(PAUSES_S)) - 1], min(wait_s, PAUSES_S[-1]))
    failed = replace(state, tries=tries, failing_since=since, error=error, not_before=now + pause_s)
    gives_up = hopeless or now - since >= GIVEN_UP_AFTER_S
    return replace(
        endpoint, state=failed, paused=EndpointPause(at=now, why=error) if gives_up else endpoint.paused
    )


def in_trouble(endpoint: Endpoint, now: float) -> bool:
    """Tells whether people should look at the endpoint: it has failed for a while, or was paused for that."""
    if endpoint.paused is not None:
        return not endpoint.paused.by
    since = endpoint.state.failing_since
    return since is not None and now - since >= TROUBLE_AFTER_S


def _local(at: float, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(at, UTC).astimezone(zone)


def _is_within(quiet: QuietHours, local: datetime) -> bool:
    minute = local.hour * 60 + local.minute
    if quiet.end < quiet.start:
        return minute >= quiet.start or minute < quiet.end
    return quiet.start <= minute < quiet.end


def _seconds_until(minute: int, local: datetime) -> int:
    """Returns in how many seconds it is this minute of a day, if nobody changes the clocks."""
    return (minute * 60 - local.hour * 3600 - local.minute * 60 - local.second) % (DAY_MINUTES * 60)


def _change_of_clocks(since: int, until: int, zone: tzinfo) -> int | None:
    """Returns the moment from which on clocks of the zone go otherwise than before; None where they do not."""
    before = _local(since, zone).utcoffset()
    if _local(until, zone).utcoffset() == before:
        return None
    while until - since > 1:
        middle = (since + until) // 2
        if _local(middle, zone).utcoffset() == before:
            since = middle
        else:
            until = middle
    return until


def _next_at(minute: int, at: float, zone: tzinfo) -> float:
    """Returns the next moment after `at` at which clocks of the zone show this minute; once for each day."""
    local = _local(at, zone)
    hour, minute = divmod(minute % DAY_MINUTES, 60)
    day = local.date()
    while True:
        moment = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).timestamp()
        if moment > at:
            return moment
        day += timedelta(days=1)
