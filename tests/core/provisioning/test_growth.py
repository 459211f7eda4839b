"""Which machines are brought: the cheapest that fits, for jobs that nothing else would take sooner, within every ceiling."""

import sys
import time
from types import FrameType
from typing import Any

from simpletuner_fleet.core.jobs.job import Requirements, Target
from simpletuner_fleet.core.money.prices import PriceList, PriceRule
from simpletuner_fleet.core.placement.forecast import RunningJob
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.core.provisioning.growth import (
    Demand,
    FleetNow,
    Growth,
    grow,
    paused_until,
    usual_boot_s,
)
from simpletuner_fleet.core.provisioning.machine import Machine, MachineEndReason, MachineState
from simpletuner_fleet.core.provisioning.offers import MachineOffer, fits
from simpletuner_fleet.core.provisioning.pool import MachinePool
from tests.core.builders import NOW, a_gpu, a_job, a_worker
from tests.core.provisioning.provisioning_kit import (
    a_fleet,
    a_machine,
    a_pool,
    a_snapshot,
    an_offer,
    waiting,
)

BOOTING, GONE = MachineState.BOOTING, MachineState.GONE


def grown(
    fleet: FleetNow,
    *offers: MachineOffer,
    pool: MachinePool | None = None,
    machines: tuple[Machine, ...] = (),
) -> Growth:
    pool = pool or a_pool()
    snapshots = {pool.name: a_snapshot(offers=offers or (an_offer(),))}
    return grow([pool], snapshots, {pool.name: machines}, fleet)


def chosen(growth: Growth) -> list[str]:
    return [wanted.offer.id for wanted in growth.wanted]


def why_not(growth: Growth) -> list[tuple[str, Any]]:
    return [(one.code, one.params.get("ceiling")) for one in growth.no_machine.get("cloud", {}).values()]


def test_nobody_waits_and_nothing_is_brought() -> None:
    assert grown(a_fleet()) == Growth()


def test_the_cheapest_offer_that_fits_is_taken() -> None:
    offers = (
        an_offer("dear", 3_000_000),
        an_offer("small", 500_000, vram_gb=24.0),
        an_offer("fits", 2_000_000),
    )
    assert chosen(grown(a_fleet(waiting(min_vram_gb=40.0)), *offers)) == ["fits"]
    assert chosen(grown(a_fleet(waiting()), *offers)) == ["small"]


def test_each_kind_of_offer_is_compared_with_a_job_once_however_many_offers_there_are_of_it() -> None:
    offers = [
        an_offer(f"{number:04}", 1_000_000 + number, vram_gb=20.0 + number % 3) for number in range(300)
    ]
    demands = [waiting(id=f"j_{number}", min_vram_gb=22.0, gpus=8) for number in range(5)]
    compared = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal compared
        compared += event == "call" and frame.f_code is fits.__code__

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        none = grown(a_fleet(*demands), *offers)
    finally:
        sys.setprofile(before)
    assert not none.wanted
    assert compared == 3 * len(demands)
    assert chosen(grown(a_fleet(waiting(min_vram_gb=22.0)), *offers)) == ["0002"]


def test_of_single_machines_each_is_wanted_once() -> None:
    hosts = [an_offer(f"host-{number}", single=True) for number in range(3)]
    growth = grown(a_fleet(waiting(5)), *hosts, pool=a_pool(max_machines=10))
    assert chosen(growth) == ["host-0", "host-1", "host-2"]
    assert why_not(growth) == [(Code.NO_MACHINE_OFFERED, None)]
    kept = grown(a_fleet(waiting()), *hosts, pool=a_pool(min_machines=2, max_machines=10))
    assert chosen(kept) == ["host-0", "host-1"]


def test_many_busy_workers_and_offers_are_looked_at_once_and_not_for_each_job() -> None:
    gpu = a_gpu(0)
    ending = [RunningJob(job_id="j", title="j", gpus=frozenset({gpu.uuid}), ends_at=NOW + 90.0 + 9_999.0)]
    soon = [RunningJob(job_id="j", title="j", gpus=frozenset({gpu.uuid}), ends_at=NOW + 30.0)]
    workers = [a_worker(f"w_{number}", gpus=(gpu,)) for number in range(2_000)]
    busy = [(worker, soon if at < 100 else ending) for at, worker in enumerate(workers)]
    offers = [an_offer(f"o_{number:03}", 1_000 + number) for number in range(200)]
    began = time.process_time()
    growth = grown(a_fleet(waiting(256), busy=busy), *offers, pool=a_pool(max_machines=500))
    assert time.process_time() - began < 2.0
    assert len(growth.wanted) == 156, "for those whom no worker takes sooner"


def test_nothing_is_brought_or_told_for_a_job_that_the_pool_is_not_for() -> None:
    """The pool of others is neither asked nor named, and what it has on its way is nobody else's."""
    kept = a_pool(people=("u_named",), teams=("tm_1",))
    stranger, named = (
        Demand(job=a_job(f"j_{owner}", owner=owner, requires=Requirements(owner=owner)), count=1)
        for owner in ("u_other", "u_named")
    )
    assert grown(a_fleet(stranger), pool=kept) == Growth()
    assert chosen(grown(a_fleet(stranger, named), pool=kept)) == ["o_1"]
    booting = a_machine(state=BOOTING)
    assert chosen(grown(a_fleet(named), pool=kept, machines=(booting,))) == []
    of_team = a_job("j_3", owner="u_other", team="tm_1", requires=Requirements(owner="u_other", team="tm_1"))
    assert chosen(grown(a_fleet(Demand(job=of_team, count=1)), pool=kept)) == ["o_1"]


def test_a_machine_on_its_way_takes_as_many_jobs_as_it_has_gpus_for() -> None:
    booting = a_machine(state=BOOTING, gpus=2)
    assert chosen(grown(a_fleet(waiting(2)), machines=(booting,))) == []
    assert chosen(grown(a_fleet(waiting(3)), machines=(booting,))) == ["o_1"]
    takes_one = a_pool(idle_s=0.0)
    assert chosen(grown(a_fleet(waiting(2)), pool=takes_one, machines=(booting,))) == ["o_1"]


def test_a_machine_that_has_just_joined_counts_until_its_worker_connects() -> None:
    joined = a_machine()
    assert chosen(grown(a_fleet(waiting()), machines=(joined,))) == ["o_1"]
    assert chosen(grown(a_fleet(waiting(), arriving=frozenset({"m_1"})), machines=(joined,))) == []


def test_several_jobs_share_a_machine_that_is_brought_for_the_first() -> None:
    big = an_offer("big", 4_000_000, gpus=4)
    assert chosen(grown(a_fleet(waiting(4)), big)) == ["big"]


def test_a_machine_on_its_way_or_busy_that_is_too_dear_or_does_not_fit_keeps_none_from_being_brought() -> (
    None
):
    asked, booting = waiting(max_price_micros=2_000_000), a_machine(state=BOOTING, hourly_micros=2_000_001)
    assert chosen(grown(a_fleet(asked), machines=(booting,))) == ["o_1"]
    assert chosen(grown(a_fleet(waiting()), machines=(booting,))) == []
    held = frozenset({a_gpu(owner="w_1").uuid})
    soon = RunningJob(job_id="j_9", title="x", gpus=held, ends_at=NOW + 60.0)
    dear = a_worker(price_micros=2_000_001)
    assert chosen(grown(a_fleet(asked, busy=[(dear, [soon])]))) == ["o_1"]
    labelled, elsewhere = waiting(labels=(("pool", "cloud"),)), a_worker(labels={"pool": "other"})
    assert chosen(grown(a_fleet(labelled, busy=[(elsewhere, [soon])]))) == ["o_1"]


def test_a_worker_that_will_be_free_sooner_is_waited_for() -> None:
    worker = a_worker()
    soon = RunningJob(job_id="j_9", title="x", gpus=frozenset({a_gpu(owner="w_1").uuid}), ends_at=NOW + 60.0)
    late = RunningJob(job_id="j_9", title="x", gpus=frozenset({a_gpu(owner="w_1").uuid}), ends_at=NOW + 600.0)
    assert chosen(grown(a_fleet(waiting(), busy=[(worker, [soon])]))) == []
    assert chosen(grown(a_fleet(waiting(), busy=[(worker, [late])]))) == ["o_1"]
    assert chosen(grown(a_fleet(waiting(2), busy=[(worker, [soon])]))) == ["o_1"]


def test_no_machine_is_brought_for_jobs_that_a_limit_keeps_from_running() -> None:
    limits = Limits(global_running=2)
    assert chosen(grown(a_fleet(waiting(5), limits=limits, running=1))) == ["o_1"]
    assert chosen(grown(a_fleet(waiting(5), limits=limits, running=2))) == []


def test_a_job_for_the_orchestrators_own_gpus_brings_nothing() -> None:
    assert chosen(grown(a_fleet(waiting(target=Target.LOCAL)))) == []


def test_every_ceiling_keeps_machines_away_and_says_so() -> None:
    one = a_machine(asked_at=NOW - 3600.0)
    assert why_not(grown(a_fleet(waiting()), pool=a_pool(max_machines=1), machines=(one,))) == [
        (Code.MACHINE_CEILING, "max_machines")
    ]
    cases = {
        "max_price": a_pool(max_price_micros=1_900_000),
        "max_hourly": a_pool(max_hourly_micros=3_900_000),
        "max_daily": a_pool(max_daily_micros=2_100_000),
        "max_monthly": a_pool(max_monthly_micros=2_100_000),
    }
    for ceiling, pool in cases.items():
        growth = grown(a_fleet(waiting(), lead_s=600.0), pool=pool, machines=(one,))
        assert (chosen(growth), why_not(growth)) == ([], [(Code.MACHINE_CEILING, ceiling)])
    plenty = a_pool(
        max_price_micros=2_000_000,
        max_hourly_micros=4_000_000,
        max_daily_micros=3_000_000,
        max_monthly_micros=3_000_000,
    )
    assert chosen(grown(a_fleet(waiting(), lead_s=600.0), pool=plenty, machines=(one,))) == ["o_1"]


def test_a_jobs_own_price_limit_brings_no_dearer_machine_and_says_what_one_costs() -> None:
    cheap, dear = an_offer("cheap", 3_000_000, gpus=2), an_offer("dear", 2_000_000, spot=True)
    pool = a_pool(market="spot_first")
    modest = a_fleet(waiting(max_price_micros=1_990_000))
    growth = grown(modest, cheap, dear, pool=pool)
    (refusal,) = growth.no_machine["cloud"].values()
    assert (chosen(growth), refusal.code) == ([], Code.MACHINE_TOO_DEAR)
    assert (refusal.params["hourly_micros"], refusal.params["allowed_micros"]) == (2_000_000, 1_990_000)
    assert chosen(grown(a_fleet(waiting(max_price_micros=2_000_000)), cheap, dear, pool=pool)) == ["dear"]
    firm = an_offer("firm", 1_000_000)
    assert chosen(grown(a_fleet(waiting(max_price_micros=1_500_000)), dear, firm, pool=pool)) == ["firm"]


def test_no_machine_is_brought_that_what_is_left_of_a_jobs_cost_limit_does_not_pay_for() -> None:
    """Two minutes of a machine for 3.00 an hour cost 0.10."""
    cheap, dear = an_offer("cheap", 3_000_000), an_offer("dear", 6_000_000)
    poor = grown(a_fleet(waiting(room_micros=99_999)), cheap, dear)
    (refusal,) = poor.no_machine["cloud"].values()
    assert (chosen(poor), refusal.code) == ([], Code.MACHINE_COST_LIMIT)
    assert (refusal.params["hourly_micros"], refusal.params["left_micros"]) == (3_000_000, 99_999)
    assert chosen(grown(a_fleet(waiting(2, room_micros=100_000)), cheap, dear)) == ["cheap", "cheap"]
    unknown = an_offer("unknown", 0)
    assert chosen(grown(a_fleet(waiting(room_micros=100_000)), unknown)) == [], "not known is not free"
    free = PriceList(rules=(PriceRule(id="p_1", price_micros=0),))
    assert chosen(grown(a_fleet(waiting(room_micros=0), prices=free), unknown)) == ["unknown"]


def test_what_is_wanted_in_one_decision_counts_for_the_next_one_of_it() -> None:
    assert len(chosen(grown(a_fleet(waiting(9)), pool=a_pool(max_machines=2)))) == 2
    assert (
        len(chosen(grown(a_fleet(waiting(9)), pool=a_pool(max_machines=9, max_hourly_micros=6_000_000)))) == 3
    )


def test_a_machine_that_is_being_destroyed_still_costs() -> None:
    leaving = a_machine(state=MachineState.DESTROYING)
    assert chosen(grown(a_fleet(waiting()), pool=a_pool(max_machines=1), machines=(leaving,))) == []


def test_where_nothing_fits_it_says_what_was_looked_for() -> None:
    growth = grown(a_fleet(waiting(gpus=8)))
    (refusal,) = growth.no_machine["cloud"].values()
    assert (refusal.code, refusal.params["gpus"]) == (Code.NO_MACHINE_OFFERED, 8)


def test_a_pool_of_which_not_all_machines_can_be_read_brings_none_and_says_so() -> None:
    held = a_fleet(waiting(), uncounted=frozenset({"cloud"}))
    growth = grown(held, pool=a_pool(min_machines=1))
    assert (chosen(growth), why_not(growth)) == ([], [(Code.MACHINE_UNREADABLE, None)])
    other = a_pool("other")
    both = grow(
        [a_pool(), other],
        {name: a_snapshot(offers=(an_offer(),)) for name in ("cloud", "other")},
        {"cloud": (), "other": ()},
        held,
    )
    assert [one.pool for one in both.wanted] == ["other"]


def test_the_market_the_kind_and_the_region_are_the_pools_to_choose() -> None:
    spot, dear = an_offer("spot", 1_000_000, spot=True, region="eu"), an_offer("firm", 2_000_000, region="us")
    assert chosen(grown(a_fleet(waiting()), spot, dear)) == ["firm"]
    assert chosen(grown(a_fleet(waiting()), spot, dear, pool=a_pool(market="spot"))) == ["spot"]
    assert chosen(grown(a_fleet(waiting()), dear, spot, pool=a_pool(market="spot_first"))) == ["spot"]
    assert chosen(grown(a_fleet(waiting()), dear, pool=a_pool(market="spot_first"))) == ["firm"]
    assert chosen(grown(a_fleet(waiting()), dear, pool=a_pool(regions=("eu",)))) == []
    assert chosen(grown(a_fleet(waiting()), dear, pool=a_pool(kinds=("a1*",)))) == ["firm"]
    assert chosen(grown(a_fleet(waiting()), dear, pool=a_pool(kinds=("h100*",)))) == []


def test_of_several_pools_the_cheapest_brings_it_and_only_one() -> None:
    pools = [a_pool("dear"), a_pool("cheap"), a_pool("off", enabled=False)]
    snapshots = {
        "dear": a_snapshot(offers=(an_offer(price=3_000_000),)),
        "cheap": a_snapshot(offers=(an_offer(price=2_000_000),)),
        "off": a_snapshot(offers=(an_offer(price=1_000_000),)),
    }
    growth = grow(pools, snapshots, {pool.name: () for pool in pools}, a_fleet(waiting()))
    assert [wanted.pool for wanted in growth.wanted] == ["cheap"]


def test_labels_and_trainers_are_matched_as_for_workers() -> None:
    labelled = a_fleet(waiting(labels=(("team", "nlp"),)))
    assert chosen(grown(labelled)) == []
    assert chosen(grown(labelled, pool=a_pool(labels={"team": "nlp"}))) == ["o_1"]
    assert chosen(grown(a_fleet(waiting(labels=(("pool", "cloud"),))))) == ["o_1"]
    assert chosen(grown(a_fleet(waiting(trainer="demo")))) == []


def test_after_failures_a_pool_pauses_longer_each_time_and_not_after_a_success() -> None:
    failed = [
        a_machine(
            f"m_{n}",
            GONE,
            gone_at=NOW - 10.0 * n,
            asked_at=NOW - n,
            why=MachineEndReason.BOOT_DEADLINE,
            joined_at=None,
        )
        for n in range(1, 4)
    ]
    at_once = [
        a_machine(f"m_{n}", GONE, gone_at=NOW - 10.0, why=MachineEndReason.REFUSED) for n in range(1, 9)
    ]
    assert paused_until(at_once) == NOW - 10.0 + 30.0, "one round asked for all of them"
    assert paused_until(failed[:1]) == NOW - 10.0 + 30.0
    assert paused_until(failed) == NOW - 10.0 + 120.0
    growth = grown(a_fleet(waiting()), machines=tuple(failed))
    assert why_not(growth) == [(Code.MACHINES_FAILED, None)]
    came = a_machine("m_9", joined_at=NOW - 1.0)
    assert paused_until([*failed, came]) == 0.0
    ended = a_machine("m_7", GONE, gone_at=NOW - 10.0, why=MachineEndReason.LEFT)
    assert paused_until([ended]) == NOW + 20.0, "one that ended before it joined would be made again at once"
    idle = a_machine("m_8", GONE, gone_at=NOW, why=MachineEndReason.IDLE, joined_at=NOW - 50.0)
    assert paused_until([*failed, idle]) == 0.0


def test_the_least_number_is_kept_without_any_job() -> None:
    assert len(chosen(grown(a_fleet(), pool=a_pool(min_machines=2)))) == 2
    assert chosen(grown(a_fleet(), pool=a_pool(min_machines=1), machines=(a_machine(),))) == []


def test_how_long_a_pool_takes_to_boot_is_what_its_last_machines_took() -> None:
    took = [a_machine(f"m_{n}", asked_at=NOW, joined_at=NOW + n) for n in (30.0, 60.0, 500.0)]
    assert usual_boot_s(took) == 60.0
    assert usual_boot_s([]) == 120.0


def test_gpus_of_a_requirement_are_whole_machines() -> None:
    two = an_offer("two", 3_000_000, gpus=2)
    fleet = a_fleet(waiting(2, gpus=2))
    assert chosen(grown(fleet, an_offer(), two)) == ["two", "two"]


def test_no_machine_of_more_nodes_is_brought_or_waited_for_than_the_job_asks_for() -> None:
    two_nodes = an_offer("pair", 100_000, gpus=4, nodes=2)
    assert chosen(grown(a_fleet(waiting(gpus=2)), two_nodes, an_offer("single", 900_000, gpus=2))) == [
        "single"
    ]
    assert chosen(grown(a_fleet(waiting(gpus=4, nodes=2)), two_nodes, an_offer("single", 1, gpus=4))) == [
        "pair"
    ]
    booting = a_machine(state=BOOTING, gpus=4, nodes=2)
    assert len(grown(a_fleet(waiting(gpus=1)), machines=(booting,)).wanted) == 1
    assert not grown(a_fleet(waiting(gpus=4, nodes=2)), two_nodes, machines=(booting,)).wanted


def test_what_waits_to_be_asked_for_is_needed_by_a_job_or_by_the_pool() -> None:
    wanted = (a_machine("m_1", MachineState.WANTED), a_machine("m_2", MachineState.WANTED))
    assert grown(a_fleet(), machines=wanted).needless == {"m_1", "m_2"}
    assert grown(a_fleet(), machines=wanted, pool=a_pool(min_machines=1)).needless == {"m_1"}
    grows = grown(a_fleet(waiting()), machines=wanted)
    assert (grows.needless, chosen(grows)) == ({"m_2"}, [])
    asked = a_machine("m_0", MachineState.ASKED)
    assert grown(a_fleet(waiting()), machines=(*wanted, asked)).needless == {"m_1", "m_2"}
