import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.job import AttemptState
from simpletuner_fleet.core.money.costs import cost_of, kind_of_gpus
from simpletuner_fleet.core.money.idle import idle_cost
from simpletuner_fleet.core.money.prices import (
    PriceList,
    PriceRule,
    checked_price_rule,
    gpu_price,
    hourly_price,
    in_order,
)
from simpletuner_fleet.core.placement.matching import Occupancy
from simpletuner_fleet.core.workers.worker import Connection, WorkerType
from tests.core.builders import NOW, a_gpu, a_worker, an_attempt

HOUR_S = 3600.0


def a_rule(id: str, price: int, **names: object) -> PriceRule:
    return replace(PriceRule(id=id, price_micros=price), **names)


def prices(*rules: PriceRule) -> PriceList:
    return PriceList(currency="EUR", rules=in_order(rules))


def test_the_rule_that_names_most_counts_and_of_equals_the_last() -> None:
    known = prices(
        a_rule("all", 1),
        a_rule("a100", 2, gpu="*a100*", created_at=1.0),
        a_rule("a100 anew", 3, gpu="*A100*", created_at=2.0),
        a_rule("spot", 4, gpu="*A100*", label="market", value="sp?t"),
        a_rule("leaves", 5, worker_type=WorkerType.EPHEMERAL, label="market", value="spot", gpu="*A100*"),
    )
    plain, other = a_worker(), a_worker(gpus=(replace(a_gpu(), name="RTX 4090"),))
    spot = a_worker(labels={"Market": "Spot"})
    leaving = replace(spot, chosen_type=WorkerType.EPHEMERAL)
    assert [gpu_price(known, one, one.gpus[0]) for one in (plain, other, spot, leaving)] == [3, 1, 4, 5]


def test_what_is_said_of_a_worker_goes_before_its_own_word_and_that_before_rules() -> None:
    known = prices(a_rule("all", 1))
    says = a_worker(reported_price_micros=7)
    assert gpu_price(known, says, says.gpus[0]) == 7
    assert gpu_price(known, replace(says, price_micros=0), says.gpus[0]) == 0, "for nothing is a price"


def test_one_gpu_without_a_price_makes_the_whole_unknown() -> None:
    known = prices(a_rule("a100", 2, gpu="*A100*"))
    mixed = a_worker(gpus=(a_gpu(0), replace(a_gpu(1), name="odd")))
    assert hourly_price(known, mixed, mixed.gpus[:1]) == 2
    assert hourly_price(known, mixed, mixed.gpus) is None
    assert hourly_price(known, mixed, ()) == 0, "no GPU costs nothing"
    assert kind_of_gpus(mixed.gpus) == "NVIDIA A100-SXM4-80GB, odd"


def test_a_rule_that_cannot_hold_is_refused() -> None:
    for wrong in (a_rule("r", -1), a_rule("r", 1, label="market"), a_rule("r", 1, gpu="*" * 300)):
        with pytest.raises(Invalid):
            checked_price_rule(wrong)


def test_a_job_costs_what_its_attempts_cost_at_the_price_of_their_time() -> None:
    over = an_attempt(
        "a_1",
        state=AttemptState.ENDED,
        gpus=("g",),
        accepted_at=NOW,
        ended_at=NOW + HOUR_S,
        hourly_micros=2_000_000,
    )
    runs = an_attempt("a_2", gpus=("g",), accepted_at=NOW + HOUR_S, hourly_micros=3_000_000)
    unknown = an_attempt("a_3", gpus=("g",), accepted_at=NOW)
    never_accepted = an_attempt("a_4", gpus=("g",), accepted_at=None, hourly_micros=9)
    later = NOW + 1.5 * HOUR_S
    known = cost_of([over, runs, never_accepted], later)
    assert known is not None
    assert (known.micros, known.at_least, known.hourly_micros) == (3_500_000, False, 3_000_000)
    partly = cost_of([over, unknown], later)
    assert partly is not None
    assert (partly.micros, partly.at_least) == (2_000_000, True)
    assert cost_of([unknown], later) is None, "what nobody knows is not 0"
    assert cost_of([], later) is None


def test_idle_gpus_cost_what_they_cost_and_each_counts_once() -> None:
    known = prices(a_rule("a100", 5, gpu="*A100*"))
    first = a_worker("w_1", gpus=2)
    same_machine = a_worker("w_2", gpus=first.gpus)
    odd = a_worker("w_3", gpus=(replace(a_gpu(owner="w_3"), name="odd"),))
    gone = a_worker("w_4", connection=Connection.OFFLINE)
    held = {"w_1": Occupancy(1, frozenset({first.gpus[0].uuid}))}
    idle = idle_cost(known, [first, same_machine, odd, gone], lambda id: held.get(id, Occupancy()))
    assert (idle.gpus, idle.idle_gpus, idle.unpriced_gpus) == (3, 2, 1)
    assert (idle.idle_hourly_micros, idle.busy_hourly_micros) == (5, 5)
