from datetime import UTC, datetime

from msgspec.structs import replace

from simpletuner_fleet.core.money.forecast import forecast_of
from simpletuner_fleet.core.money.reports import NOT_SHOWN, UsedAttempt, UsedBy, report, seen_use
from simpletuner_fleet.core.people.visibility import FULL_VISIBILITY, Visibility, VisibilityScope

HOUR_S = 3600.0
MIDNIGHT = datetime(2026, 3, 31, tzinfo=UTC).timestamp()
NOW = MIDNIGHT + 12 * HOUR_S
USED = UsedAttempt(
    owner="ann",
    team="lab",
    visibility=Visibility.TEAM,
    config_name="cats",
    gpu_kind="A100",
    gpus=2,
    begun_at=MIDNIGHT - 2 * HOUR_S,
    ended_at=MIDNIGHT + 1 * HOUR_S,
    hourly_micros=4_000_000,
)
RUNS = replace(USED, owner="bob", team="", begun_at=NOW - HOUR_S, ended_at=None, hourly_micros=None)


def test_attempts_count_as_far_as_they_lie_in_the_period() -> None:
    made = report([USED, RUNS], UsedBy.PERSON, MIDNIGHT - HOUR_S, NOW, NOW)
    assert [(line.key, line.micros, line.gpu_seconds) for line in made.lines] == [
        ("ann", 8_000_000, 4 * HOUR_S),
        ("bob", 0, 2 * HOUR_S),
    ]
    assert made.lines[1].unpriced_gpu_seconds == 2 * HOUR_S, "not 0, but not known"
    assert (made.total.micros, made.total.attempts) == (8_000_000, 2)
    assert report([USED], UsedBy.PERSON, MIDNIGHT + HOUR_S, NOW, NOW).lines == []


def test_a_day_ends_at_midnight_and_nothing_is_counted_twice() -> None:
    made = report([USED, RUNS], UsedBy.DAY, MIDNIGHT - 86_400, NOW, NOW)
    assert [(line.key, line.micros) for line in made.lines] == [
        (str(int(MIDNIGHT - 86_400)), 8_000_000),
        (str(int(MIDNIGHT)), 4_000_000),
    ]
    assert made.total.micros == 12_000_000
    assert made.total.attempts == 2
    assert [line.key for line in report([USED], UsedBy.GPU, 0.0, NOW, NOW).lines] == ["A100"]
    assert [line.key for line in report([USED], UsedBy.CONFIG, 0.0, NOW, NOW).lines] == ["cats"]
    assert [line.key for line in report([USED, RUNS], UsedBy.TEAM, 0.0, NOW, NOW).lines] == ["lab", ""]


def test_one_is_told_of_ones_own_and_ones_teams_alone() -> None:
    private = replace(USED, visibility=Visibility.PRIVATE)
    everybodys = replace(RUNS, visibility=Visibility.EVERYBODY)
    ann = VisibilityScope(ids=frozenset({"ann"}))
    tom = VisibilityScope(ids=frozenset({"tom"}), teams=frozenset({"lab"}))
    fay = VisibilityScope(ids=frozenset({"fay"}), teams=frozenset({"other"}))
    assert seen_use(ann, private) == private
    assert seen_use(tom, USED) == USED
    assert seen_use(tom, private) == replace(private, owner=NOT_SHOWN, config_name=NOT_SHOWN)
    assert [seen_use(fay, one) for one in (USED, private, everybodys)] == [None, None, None]
    assert seen_use(FULL_VISIBILITY, private) == private


def test_a_forecast_goes_on_as_the_period_has_begun_and_says_when_it_is_rough() -> None:
    ends = MIDNIGHT + 86_400
    half = forecast_of(5_000_000, 1_000_000, 8_000_000, MIDNIGHT, ends, NOW)
    assert (half.micros, half.rough, half.hourly_micros) == (10_000_000, False, 1_000_000)
    assert half.reached_at == NOW + 3 * HOUR_S
    early = forecast_of(5_000_000, 0, 8_000_000, MIDNIGHT, ends, MIDNIGHT + HOUR_S)
    assert (early.rough, early.reached_at) == (True, None)
    over = forecast_of(9_000_000, 0, 8_000_000, MIDNIGHT, ends, NOW)
    assert over.reached_at == NOW
    slow = forecast_of(0, 1, 8_000_000, MIDNIGHT, ends, NOW)
    assert slow.reached_at is None, "not in this period"
