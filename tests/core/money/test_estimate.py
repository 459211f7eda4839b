from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.money.estimate import (
    HourlyPrices,
    PastRun,
    Sureness,
    estimate,
    hourly_prices,
    most_expected,
    past_run,
)
from simpletuner_fleet.core.money.prices import PriceList, PriceRule
from tests.core.builders import NOW, a_gpu, a_job, a_worker, an_attempt

HOUR_S = 3600.0
PRICES = HourlyPrices(low=1_000_000, high=3_000_000, unpriced=0)
JOB = a_job()


def test_several_runs_alike_make_a_good_estimate() -> None:
    runs = [PastRun(hours * HOUR_S, 1) for hours in (1, 2, 9)]
    made = estimate(JOB, PRICES, "EUR", [*runs, PastRun(1.0, 8)])
    assert (made.sure, made.runs) == (Sureness.GOOD, 3)
    assert (made.low_micros, made.likely_micros, made.high_micros) == (1_000_000, 4_000_000, 27_000_000)
    limited = estimate(replace(JOB, time_limit_s=3 * HOUR_S), PRICES, "EUR", runs)
    assert limited.high_micros == 9_000_000, "none beyond the time limit"


def test_how_sure_it_is_depends_on_what_is_known() -> None:
    assert estimate(JOB, PRICES, "EUR", [PastRun(HOUR_S, 1)]).sure is Sureness.ROUGH
    assert estimate(JOB, PRICES, "EUR", [PastRun(HOUR_S, 4)] * 5).sure is Sureness.ROUGH
    limited = estimate(replace(JOB, time_limit_s=2 * HOUR_S), PRICES, "EUR", [])
    assert (limited.sure, limited.likely_micros, limited.high_micros) == (Sureness.CEILING, None, 6_000_000)
    unknown = estimate(JOB, PRICES, "EUR", [])
    assert (unknown.sure, unknown.high_micros, unknown.hourly_high_micros) == (
        Sureness.UNKNOWN,
        None,
        3_000_000,
    )


def test_workers_without_a_price_are_counted_and_not_taken_for_free() -> None:
    known = PriceList(rules=(PriceRule(id="p", price_micros=2, gpu="*A100*"),))
    odd = a_worker("w_2", gpus=(replace(a_gpu(owner="w_2"), name="odd"),))
    dear = a_worker("w_3", gpus=2, price_micros=5)
    too_small = a_worker("w_4", gpus=0, price_micros=1)
    asked = hourly_prices(known, JOB, [a_worker(gpus=4), odd, dear, too_small], None)
    assert asked is not None
    assert asked == HourlyPrices(low=2, high=5, unpriced=1)
    pair = a_job(requires=Requirements(gpus=2))
    assert hourly_prices(known, pair, [dear], None) == HourlyPrices(low=10, high=10, unpriced=0)
    assert hourly_prices(known, JOB, [odd], None) is None
    made = estimate(replace(JOB, time_limit_s=HOUR_S), asked, "EUR", [])
    assert made.high_micros == 5
    assert most_expected(made) is None, "it may go where nobody knows the price"


def test_a_past_run_took_as_long_as_its_attempts_together() -> None:
    attempts = [
        an_attempt("a_1", accepted_at=NOW, ended_at=NOW + 10),
        an_attempt("a_2", accepted_at=None, ended_at=NOW + 20),
        an_attempt("a_3", accepted_at=NOW + 100, ended_at=NOW + 130),
    ]
    assert past_run(JOB, attempts) == PastRun(40.0, 1)
    assert past_run(JOB, attempts[1:2]) is None
