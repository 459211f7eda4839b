"""When something is told: a table of moments."""

from datetime import UTC, datetime
from random import Random
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.notices.endpoint import (
    Channel,
    DeliveryState,
    Endpoint,
    EndpointPause,
    NoticeRules,
    QuietHours,
)
from simpletuner_fleet.core.notices.kinds import Notice
from simpletuner_fleet.core.notices.timing import (
    GIVEN_UP_AFTER_S,
    PAUSES_S,
    TROUBLE_AFTER_S,
    SendNow,
    Wait,
    after_failure,
    after_success,
    due_at,
    in_trouble,
    may_try,
    next_message,
    quiet_until,
)

BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = QuietHours(start=22 * 60, end=7 * 60)
LUNCH = QuietHours(start=12 * 60, end=13 * 60)
RULES = NoticeRules(events=("job.failed",))


def at(text: str, zone: ZoneInfo | None = None) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone or UTC).timestamp()


def notice(moment: float, seq: int = 1) -> Notice:
    return Notice(
        seq=seq,
        hash="h",
        at=moment,
        kind="job.failed",
        target_type="job",
        target_id="j",
        title="j",
        owner="u_1",
    )


def endpoint(**state: float) -> Endpoint:
    return Endpoint(
        id="n_1",
        owner="u_1",
        name="mine",
        channel=Channel.SLACK,
        sealed_address="",
        shown_address="",
        rules=RULES,
        state=DeliveryState(cursor=0, **state),  # type: ignore[arg-type]
        created_at=0.0,
    )


@pytest.mark.parametrize(
    ("quiet", "moment", "end"),
    [
        (NIGHT, "2026-01-10T21:59", None),
        (NIGHT, "2026-01-10T22:00", "2026-01-11T07:00"),
        (NIGHT, "2026-01-11T06:59", "2026-01-11T07:00"),
        (NIGHT, "2026-01-11T07:00", None),
        (LUNCH, "2026-01-10T12:30", "2026-01-10T13:00"),
        (LUNCH, "2026-01-10T13:00", None),
        (QuietHours(start=60, end=60), "2026-01-10T01:00", None),
        (None, "2026-01-10T03:00", None),
    ],
)
def test_quiet_hours_end_when_they_say(quiet: QuietHours | None, moment: str, end: str | None) -> None:
    now = at(moment)
    assert quiet_until(quiet, now, UTC) == (at(end) if end else now)


def test_quiet_hours_are_meant_in_their_own_zone_also_when_clocks_change() -> None:
    """In the night to 29 March 2026 Berlin's clocks jump from two to three."""
    now = at("2026-03-28T23:00", BERLIN)
    assert quiet_until(NIGHT, now, BERLIN) == at("2026-03-29T07:00", BERLIN)
    assert quiet_until(NIGHT, now, BERLIN) - now == 7 * 3600


@pytest.mark.parametrize(
    ("rules", "moment", "due"),
    [
        (RULES, "2026-01-10T10:20", "2026-01-10T10:20"),
        (replace(RULES, digest="hourly"), "2026-01-10T10:20", "2026-01-10T11:00"),
        (replace(RULES, digest="daily"), "2026-01-10T10:20", "2026-01-11T09:00"),
        (replace(RULES, digest="daily"), "2026-01-10T08:59", "2026-01-10T09:00"),
        (replace(RULES, digest="hourly", quiet=NIGHT), "2026-01-10T21:30", "2026-01-11T07:00"),
    ],
)
def test_a_digest_comes_at_its_hour_and_never_in_quiet_hours(
    rules: NoticeRules, moment: str, due: str
) -> None:
    assert due_at(rules, at(moment), UTC) == at(due)


def test_what_quiet_hours_held_back_is_one_message_and_the_rest_is_told_by_itself() -> None:
    rules = replace(RULES, quiet=NIGHT)
    night = [notice(at("2026-01-10T23:00"), 1), notice(at("2026-01-11T02:00"), 2)]
    morning = notice(at("2026-01-11T08:00"), 3)
    held = [*night, morning]
    assert next_message(rules, held, at("2026-01-11T06:00"), UTC) == Wait(at("2026-01-11T07:00"))
    assert next_message(rules, night, at("2026-01-11T07:00"), UTC) == SendNow(2, held_back=True)
    assert next_message(rules, [morning], at("2026-01-11T08:00"), UTC) == SendNow(1)


def test_what_came_by_day_and_could_not_be_sent_waits_for_the_morning() -> None:
    rules = replace(RULES, quiet=NIGHT)
    late = [notice(at("2026-01-10T21:59"))]
    assert next_message(rules, late, at("2026-01-10T22:10"), UTC) == Wait(at("2026-01-11T07:00"))


def test_without_rules_each_is_told_by_itself_at_once() -> None:
    assert next_message(RULES, [notice(10.0, 1), notice(10.0, 2)], 11.0, UTC) == SendNow(1)


def test_each_failure_waits_longer_and_after_days_it_is_paused_with_its_reason() -> None:
    one, now, waits = endpoint(), 1_000.0, []
    while one.paused is None:
        one = after_failure(one, "HTTP 500", now)
        waits.append(one.state.not_before - now)
        now = one.state.not_before
    assert waits[: len(PAUSES_S)] == list(PAUSES_S)
    assert set(waits[len(PAUSES_S) :]) == {PAUSES_S[-1]}
    assert one.paused.why == "HTTP 500"
    assert one.paused.at - 1_000.0 >= GIVEN_UP_AFTER_S
    assert not one.paused.by


def test_it_waits_as_long_as_the_other_side_asks_and_no_longer_than_a_quarter_day() -> None:
    assert after_failure(endpoint(), "", 0.0, wait_s=90.0).state.not_before == 90.0
    assert after_failure(endpoint(), "", 0.0, wait_s=1e9).state.not_before == PAUSES_S[-1]


def test_one_that_is_gone_is_paused_at_once() -> None:
    assert after_failure(endpoint(), "HTTP 410", 5.0, hopeless=True).paused == EndpointPause(
        at=5.0, why="HTTP 410"
    )


def test_a_success_forgets_the_failures_and_moves_on() -> None:
    failed = after_failure(endpoint(), "HTTP 500", 5.0)
    assert after_success(failed, 7, 9.0).state == DeliveryState(cursor=7, delivered_at=9.0)


def test_a_try_that_a_wrong_clock_has_put_off_for_years_is_due() -> None:
    assert may_try(DeliveryState(cursor=0, not_before=1e9), 100.0) == 100.0
    assert may_try(DeliveryState(cursor=0, not_before=130.0), 100.0) == 130.0


def test_people_are_shown_what_fails_for_a_while_or_was_paused_for_it() -> None:
    failing = after_failure(endpoint(), "no", 0.0)
    assert not in_trouble(failing, TROUBLE_AFTER_S - 1)
    assert in_trouble(failing, TROUBLE_AFTER_S)
    assert in_trouble(replace(endpoint(), paused=EndpointPause(at=0.0, why="no")), 1.0)
    assert not in_trouble(replace(endpoint(), paused=EndpointPause(at=0.0, why="asked", by="u_1")), 1.0)


ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "America/St_Johns",
    "UTC",
)
CHANGES = ("2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01")
"""The days on which clocks change in one of the zones or another."""


def scanned_until(quiet: QuietHours, moment: float, zone: ZoneInfo) -> float:
    """Looks at every minute from this moment on until one is not quiet."""
    while True:
        local = datetime.fromtimestamp(moment, UTC).astimezone(zone)
        minute = local.hour * 60 + local.minute
        quiet_now = (
            quiet.start <= minute < quiet.end
            if quiet.start <= quiet.end
            else not quiet.end <= minute < quiet.start
        )
        if not quiet_now:
            return moment
        moment = moment // 60 * 60 + 60


@pytest.mark.parametrize("name", ZONES)
def test_quiet_hours_end_at_the_first_minute_beyond_them_on_every_day(name: str) -> None:
    chance, zone = Random(20_261_025), ZoneInfo(name)
    for day in CHANGES:
        noon_before = at(f"{day}T12:00", zone) - 86_400
        for _ in range(60):
            near = [chance.randrange(24 * 60), chance.randrange(5 * 60)]
            quiet = QuietHours(start=chance.choice(near), end=chance.randrange(5 * 60))
            moment = noon_before + chance.randrange(36 * 3600) + chance.choice((0.0, 0.25))
            assert quiet_until(quiet, moment, zone) == scanned_until(quiet, moment, zone), (
                day,
                quiet,
                moment,
            )


@pytest.mark.parametrize(
    ("quiet", "happens", "ends"),
    [
        (QuietHours(start=22 * 60, end=150), "2026-10-25T00:15:00", "2026-10-25T00:30:00"),
        (QuietHours(start=22 * 60, end=150), "2026-10-25T01:15:00", "2026-10-25T01:30:00"),
        (QuietHours(start=22 * 60, end=150), "2026-03-29T00:45:00", "2026-03-29T01:00:00"),
        (QuietHours(start=135, end=105), "2026-10-25T00:50:00", "2026-10-25T01:00:00"),
    ],
    ids=["first 02:15", "second 02:15", "02:30 is left out", "set back to before they begin"],
)
def test_quiet_hours_end_when_they_should_though_the_clocks_change(
    quiet: QuietHours, happens: str, ends: str
) -> None:
    """Times are in UTC; in Berlin clocks change at 01:00 UTC."""
    assert quiet_until(quiet, at(happens), BERLIN) == at(ends)


def test_a_daily_digest_comes_once_on_a_day_that_has_its_time_twice() -> None:
    rules = replace(RULES, digest="daily", digest_at=150)
    first = at("2026-10-25T00:30:00")
    assert due_at(rules, first - 60, BERLIN) == first
    assert due_at(rules, first, BERLIN) == first + 25 * 3600
