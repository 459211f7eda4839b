"""Prices that change while something is used: every stretch costs what it cost then."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import AttemptState
from simpletuner_fleet.core.money.costs import cost_of, is_unpriced, repriced
from simpletuner_fleet.core.money.prices import NO_PRICES
from simpletuner_fleet.core.money.rates import MAX_RATES, Rates, spans_of, with_rate
from simpletuner_fleet.core.money.reports import UsedAttempt, UsedBy, report
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.core.placement.usage import EVERYBODY, UseLedger
from tests.core.builders import NOW, a_job, a_worker, an_attempt

HOUR_S = 3600.0
RUNNING = an_attempt(accepted_at=NOW, hourly_micros=1_000_000)


def test_a_job_costs_what_each_moment_cost() -> None:
    dearer = repriced(RUNNING, a_worker(price_micros=3_000_000), NO_PRICES, NOW + HOUR_S)
    assert dearer is not None
    cost = cost_of([dearer], NOW + 2 * HOUR_S)
    assert cost is not None
    assert (cost.micros, cost.hourly_micros, cost.live_micros) == (4_000_000, 3_000_000, 4_000_000)
    ended = replace(dearer, state=AttemptState.ENDED, ended_at=NOW + 3 * HOUR_S)
    over = cost_of([ended], NOW + 9 * HOUR_S)
    assert over is not None
    assert (over.micros, over.hourly_micros, over.live_micros) == (7_000_000, 0, 0)


def test_a_price_is_followed_only_where_it_is_another_one_and_known() -> None:
    assert repriced(RUNNING, a_worker(price_micros=1_000_000), NO_PRICES, NOW) is None
    assert repriced(RUNNING, a_worker(), NO_PRICES, NOW) is None, "the last price counts on"
    assert repriced(RUNNING, a_worker(gpus=0, price_micros=2), NO_PRICES, NOW) is None, (
        "its GPU is not reported"
    )
    ended = replace(RUNNING, state=AttemptState.ENDED, ended_at=NOW)
    assert repriced(ended, a_worker(price_micros=2), NO_PRICES, NOW) is None


def test_what_was_not_known_at_first_is_at_least_what_is_known() -> None:
    unknown = replace(RUNNING, hourly_micros=None)
    known = repriced(unknown, a_worker(price_micros=2_000_000), NO_PRICES, NOW + HOUR_S)
    assert known is not None
    cost = cost_of([known], NOW + 2 * HOUR_S)
    assert cost is not None
    assert (cost.micros, cost.at_least, is_unpriced(known)) == (2_000_000, True, True)
    before = replace(known, rates=((NOW - 1.0, 2_000_000),))
    assert not is_unpriced(before), "it was known when the attempt was accepted"


def test_a_price_that_never_rests_is_kept_in_bounds_at_the_same_cost() -> None:
    rates: Rates = ()
    for number in range(10 * MAX_RATES):
        rates = with_rate(1_000_000, rates, 1_000_000 + (number + 1) % 7 * 100_000, NOW + 10.0 * (number + 1))
    assert len(rates) <= MAX_RATES
    ended = NOW + 10.0 * (10 * MAX_RATES + 1)
    kept = sum(span.micros for span in spans_of(1_000_000, rates, NOW, ended))
    exact = sum((1_000_000 + number % 7 * 100_000) * 10.0 / HOUR_S for number in range(10 * MAX_RATES + 1))
    assert abs(kept - exact) < MAX_RATES


@given(
    first=st.none() | st.integers(0, 10**7),
    changes=st.lists(st.tuples(st.floats(0.0, 9000.0), st.integers(0, 10**7)), max_size=5),
    begun=st.floats(0.0, 9000.0),
    lasted=st.floats(0.001, 9000.0),
)
def test_stretches_cover_the_time_without_a_gap(
    first: int | None, changes: list[tuple[float, int]], begun: float, lasted: float
) -> None:
    spans = list(spans_of(first, tuple(sorted(changes)), begun, begun + lasted))
    assert (spans[0].begun_at, spans[-1].ended_at) == (begun, begun + lasted)
    assert all(one.ended_at == other.begun_at for one, other in pairwise(spans))
    assert all(span.begun_at < span.ended_at for span in spans)


def test_budgets_and_reports_follow_the_price_too() -> None:
    ledger, job = UseLedger(), a_job()
    ledger.advance(NOW)
    dearer = replace(RUNNING, rates=((NOW + HOUR_S, 3_000_000),))
    ledger.see_attempt(None, RUNNING, job)
    ledger.see_attempt(RUNNING, dearer, job)
    at = NOW + 2 * HOUR_S
    ledger.advance(at)
    assert ledger.spent_micros(ledger.month, EVERYBODY, at) == 4_000_000
    assert ledger.hourly[EVERYBODY] == 3_000_000
    ended = replace(dearer, state=AttemptState.ENDED, ended_at=at)
    ledger.see_attempt(dearer, ended, job)
    assert ledger.spent_micros(ledger.month, EVERYBODY, at + 9.0) == 4_000_000
    assert ledger.hourly[EVERYBODY] == 0
    used = UsedAttempt(
        owner="u",
        team="",
        visibility=Visibility.EVERYBODY,
        config_name="c",
        gpu_kind="A100",
        gpus=1,
        begun_at=NOW,
        ended_at=at,
        hourly_micros=None,
        rates=((NOW + HOUR_S, 3_000_000),),
    )
    whole = report([used], UsedBy.CONFIG, NOW, at, at)
    assert (whole.total.micros, whole.total.unpriced_gpu_seconds) == (3_000_000, HOUR_S)
