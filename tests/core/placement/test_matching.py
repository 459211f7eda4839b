from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Requirements, Target
from simpletuner_fleet.core.money.prices import PriceList, PriceRule
from simpletuner_fleet.core.placement.forecast import other_ways
from simpletuner_fleet.core.placement.label_match import labels_match
from simpletuner_fleet.core.placement.matching import (
    FREE,
    NEVER,
    STEPS,
    Occupancy,
    Refusal,
    allocate,
    is_open,
    preference,
    why_never,
    why_not_now,
)
from simpletuner_fleet.core.workers.audience import Audience
from simpletuner_fleet.core.workers.start_trouble import StartTrouble
from simpletuner_fleet.core.workers.worker import AdminState, Connection, Worker
from tests.core.builders import ENDS, a_gpu, a_worker

HARD = Requirements(
    target=Target.WORKER,
    gpus=2,
    min_vram_gb=40,
    accelerator="cuda",
    trainer="command",
    labels=(("team", "nlp"),),
    datasets=(("d1", 600), ("d2", 400)),
    max_price_micros=3_000_000,
)
GOOD = a_worker(gpus=2, trainers=("command",), labels={"team": "nlp"}, data_limit_bytes=1000)
FLAWS: list[tuple[Refusal, dict[str, object]]] = [
    (Refusal.NOT_REMOTE, {"local": True}),
    (Refusal.KEPT_FOR_OTHERS, {"audience": Audience(teams=("tm_1",), people=("u_1",))}),
    (Refusal.NODES_DIFFER, {"gpus": (a_gpu(0), replace(a_gpu(1), node=1))}),
    (Refusal.TOO_FEW_GPUS, {"gpus": (a_gpu(0, vram_gb=8, accelerator_type="rocm"),)}),
    (
        Refusal.TOO_LITTLE_VRAM,
        {"gpus": (a_gpu(0), a_gpu(1, vram_gb=39.9, accelerator_type="rocm"))},
    ),
    (Refusal.WRONG_ACCELERATOR, {"gpus": (a_gpu(0), a_gpu(1, accelerator_type="rocm"))}),
    (Refusal.TRAINER_MISSING, {"trainers": ("simpletuner",)}),
    (Refusal.LABELS_DIFFER, {"labels": {"team": "vision"}}),
    (Refusal.NO_ROOM_FOR_DATA, {"data_limit_bytes": 999}),
    (Refusal.TOO_DEAR, {"price_micros": 1_500_001}),
    (Refusal.OFFLINE, {"connection": Connection.OFFLINE}),
    (Refusal.RECONNECTING, {"connection": Connection.RECONNECTING}),
    (Refusal.DRAINING, {"admin": AdminState.DRAINING}),
    (Refusal.INTERRUPTED, {"interruption": ENDS}),
    (Refusal.SET_ASIDE, {"start_trouble": StartTrouble(closed_until=1.0)}),
    (Refusal.BUSY, {"max_jobs": 0}),
]


def test_an_hour_of_the_whole_machine_is_compared_by_whoever_has_said_its_price() -> None:
    asked = Requirements(gpus=1, max_price_micros=3_000_000)
    two = a_worker(gpus=2)
    rules = PriceList(rules=(PriceRule(id="p_1", price_micros=1_500_001, gpu="*"),))
    assert why_never(two, asked) is None, "nobody has said what it costs"
    assert why_never(two, asked, None, rules) is Refusal.TOO_DEAR
    assert why_never(replace(two, reported_price_micros=1_500_000), asked, None, rules) is None
    said = replace(two, reported_price_micros=1, price_micros=1_500_001)
    assert why_never(said, asked) is Refusal.TOO_DEAR
    assert why_never(said, Requirements(gpus=1)) is None
    assert why_never(replace(two, gpus=()), Requirements(gpus=0, max_price_micros=0), None, rules) is None


@pytest.mark.parametrize(
    ("owner", "team", "takes"),
    [
        ("u_1", "", True),
        ("u_1", "tm_2", True),
        ("u_2", "tm_1", True),
        ("u_2", "tm_2", False),
        ("", "", False),
    ],
)
def test_a_kept_worker_takes_jobs_of_the_people_and_of_the_teams_that_are_named(
    owner: str, team: str, takes: bool
) -> None:
    kept = a_worker(audience=Audience(teams=("tm_1",), people=("u_1",)))
    refusal = why_never(kept, Requirements(owner=owner, team=team))
    assert refusal is (None if takes else Refusal.KEPT_FOR_OTHERS)


def test_what_would_start_now_instead_is_not_asked_of_workers_kept_for_others() -> None:
    kept = a_worker(audience=Audience(people=("u_1",)))
    ways = [other_ways(Requirements(owner=owner, gpus=2), lambda: [(kept, FREE)]) for owner in ("u_1", "u_2")]
    assert [len(one) for one in ways] == [1, 0]


def test_a_worker_with_everything_is_not_refused() -> None:
    assert why_never(GOOD, HARD) is None
    assert why_not_now(GOOD, FREE, HARD) is None


@pytest.mark.parametrize(("refusal", "flaw"), FLAWS)
def test_each_flaw_alone_is_named(refusal: Refusal, flaw: dict[str, object]) -> None:
    worker = replace(GOOD, **flaw)
    assert why_not_now(worker, FREE, HARD) is refusal
    assert why_never(worker, HARD) is (refusal if refusal in NEVER else None)


@pytest.mark.parametrize(("earlier", "later"), list(pairwise(FLAWS)))
def test_of_two_flaws_the_one_that_is_tried_first_is_named(
    earlier: tuple[Refusal, dict[str, object]], later: tuple[Refusal, dict[str, object]]
) -> None:
    worker = replace(GOOD, **{**later[1], **earlier[1]})
    assert why_not_now(worker, FREE, HARD) is earlier[0]


def test_refusals_are_tried_in_the_contracts_order() -> None:
    assert [step.name for step in STEPS] == [
        *("NOT_REMOTE", "NOT_LOCAL", "KEPT_FOR_OTHERS", "NODES_DIFFER", "TOO_FEW_GPUS", "TOO_LITTLE_VRAM"),
        "WRONG_ACCELERATOR",
        *("TRAINER_MISSING", "LABELS_DIFFER", "NO_ROOM_FOR_DATA", "NOT_FOR_TEAM", "TOO_DEAR"),
        *("PRICE_UNKNOWN", "COST_LIMIT", "NOT_GRANTED"),
        *("OFFLINE", "RECONNECTING", "DRAINING", "INTERRUPTED", "SET_ASIDE", "UNUSABLE"),
        *("HELD_ELSEWHERE", "NOT_LISTENING", "BUSY"),
    ]
    assert STEPS[:15] == tuple(step for step in STEPS if step in NEVER)


@pytest.mark.parametrize(
    ("target", "local", "refusal"),
    [
        (Target.WORKER, False, None),
        (Target.WORKER, True, Refusal.NOT_REMOTE),
        (Target.LOCAL, False, Refusal.NOT_LOCAL),
        (Target.LOCAL, True, None),
        (Target.AUTO, False, None),
        (Target.AUTO, True, None),
    ],
)
def test_a_target_says_which_machines_count(target: Target, local: bool, refusal: Refusal | None) -> None:
    assert why_never(a_worker(local=local), Requirements(target=target)) is refusal


def test_a_cpu_job_runs_on_any_worker() -> None:
    for worker in (a_worker(gpus=0), a_worker(gpus=4)):
        assert why_not_now(worker, FREE, Requirements(gpus=0)) is None
        assert allocate(worker, FREE, Requirements(gpus=0)) == ()


def test_a_worker_still_connecting_is_not_offered_anything() -> None:
    worker = a_worker(connection=Connection.CONNECTING)
    assert why_not_now(worker, FREE, Requirements()) is Refusal.OFFLINE
    assert not is_open(worker, FREE)


def test_the_kind_of_an_accelerator_is_known_in_any_case() -> None:
    worker = a_worker(gpus=(a_gpu(accelerator_type="CUDA"),))
    assert why_never(worker, Requirements(accelerator="cuda")) is None


@pytest.mark.parametrize(
    ("wanted", "labels", "fits"),
    [
        ({"trainer": ">=4.3"}, {"trainer": "4.10.1"}, True),
        ({"trainer": ">=4.3"}, {"trainer": "4.2.0"}, False),
        ({"trainer": ">=4.3"}, {}, False),
        ({}, {}, True),
        ({}, {"team": "nlp"}, True),
        ({"team": "nlp"}, {}, False),
        ({"team": "nlp"}, {"team": "nlp"}, True),
        ({"team": "NLP"}, {"TEAM": "nlp"}, True),
        ({"Gpu_Type": "A100*"}, {"gpu_type": "a100-sxm4"}, True),
        ({"gpu_type": "a100*"}, {"gpu_type": "NVIDIA A100"}, False),
        ({"gpu_type": "*a100*"}, {"gpu_type": "NVIDIA A100-SXM4-80GB"}, True),
        ({"gpu_type": "h?00"}, {"gpu_type": "h100"}, True),
        ({"gpu_type": "[ah]100"}, {"gpu_type": "H100"}, True),
        ({"gpu_type": "[!ah]100"}, {"gpu_type": "H100"}, False),
        ({"team": "nlp", "zone": "eu"}, {"team": "nlp"}, False),
        ({"team": "nlp", "zone": "eu"}, {"team": "nlp", "zone": "us"}, False),
        ({"team": "nlp", "zone": "e*"}, {"team": "nlp", "zone": "eu"}, True),
        ({"team": "*"}, {}, False),
        ({"team": "*"}, {"team": ""}, True),
        ({"team": "nlp"}, {"team": "nlp2"}, False),
    ],
)
def test_every_key_must_be_there_and_fit_its_glob_in_any_case(
    wanted: dict[str, str], labels: dict[str, str], fits: bool
) -> None:
    assert labels_match(tuple(wanted.items()), labels) is fits


def test_a_worker_cannot_label_itself_into_a_pool_the_admin_put_it_out_of() -> None:
    liar = a_worker(labels={"pool": "open"}, reported_labels={"pool": "x", "POOL": "restricted"})
    assert why_never(liar, Requirements(labels=(("pool", "restricted"),))) is Refusal.LABELS_DIFFER
    assert why_never(liar, Requirements(labels=(("pool", "open"),))) is None


def test_reported_labels_count_where_the_admin_said_nothing() -> None:
    worker = a_worker(reported_labels={"hostname": "gpu-7"})
    assert why_never(worker, Requirements(labels=(("hostname", "gpu-*"),))) is None


@pytest.mark.parametrize(("live", "max_jobs", "expected"), [(0, 1, True), (1, 1, False), (1, 2, True)])
def test_a_worker_takes_as_many_jobs_as_it_said(live: int, max_jobs: int, expected: bool) -> None:
    worker = a_worker(gpus=4, max_jobs=max_jobs)
    occupancy = Occupancy(live, frozenset({"GPU-w_1-0"} if live else ()))
    assert is_open(worker, occupancy) is expected
    assert (why_not_now(worker, occupancy, Requirements()) is None) is expected


def test_only_free_gpus_that_fit_are_given() -> None:
    gpus = (a_gpu(0, vram_gb=24), a_gpu(1), a_gpu(2, accelerator_type="rocm"), a_gpu(3), a_gpu(4))
    worker = a_worker(gpus=gpus, max_jobs=4)
    asks = Requirements(gpus=2, min_vram_gb=40, accelerator="cuda")
    assert allocate(worker, FREE, asks) == (gpus[1], gpus[3])
    assert allocate(worker, Occupancy(1, frozenset({gpus[1].uuid})), asks) == (gpus[3], gpus[4])
    held = Occupancy(1, frozenset({gpus[1].uuid, gpus[3].uuid}))
    assert allocate(worker, held, asks) is None
    assert why_not_now(worker, held, asks) is Refusal.BUSY


workers = st.builds(
    lambda vrams, held, max_jobs: (
        a_worker(gpus=tuple(a_gpu(i, vram_gb=vram) for i, vram in enumerate(vrams)), max_jobs=max_jobs),
        Occupancy(len(held), frozenset(f"GPU-w-{i}" for i in held)),
    ),
    st.lists(st.sampled_from([8.0, 24.0, 80.0]), max_size=6),
    st.sets(st.integers(0, 5)),
    st.integers(1, 8),
)


@settings(max_examples=100)
@given(workers, st.integers(0, 6), st.sampled_from([0.0, 16.0, 40.0]))
def test_what_is_given_is_free_fitting_and_exactly_as_much_as_asked(
    state: tuple[Worker, Occupancy], gpus: int, min_vram_gb: float
) -> None:
    worker, occupancy = state
    requires = Requirements(gpus=gpus, min_vram_gb=min_vram_gb)
    given_gpus = allocate(worker, occupancy, requires)
    free = [gpu for gpu in worker.gpus if gpu.uuid not in occupancy.gpus and gpu.vram_gb >= min_vram_gb]
    assert (given_gpus is not None) is (len(free) >= gpus)
    if given_gpus is not None:
        assert len(given_gpus) == len({gpu.uuid for gpu in given_gpus}) == gpus
        assert set(given_gpus) <= set(free)
    if why_not_now(worker, occupancy, requires) is None:
        assert is_open(worker, occupancy)
        assert given_gpus is not None


def test_a_remote_worker_comes_before_our_own_and_the_tightest_fit_first() -> None:
    asks = Requirements()
    remote_big, remote_small = a_worker(gpus=8), a_worker(gpus=1)
    ours = a_worker(gpus=1, local=True)
    cheap = a_worker(gpus=(a_gpu(vram_gb=24),))
    ordered = sorted([ours, remote_big, remote_small, cheap], key=lambda w: preference(w, FREE, asks))
    assert ordered == [cheap, remote_small, remote_big, ours]
    busy_big = Occupancy(1, frozenset(gpu.uuid for gpu in remote_big.gpus[:7]))
    assert preference(remote_big, busy_big, asks) == preference(remote_small, FREE, asks)


def test_gpus_used_through_another_worker_are_told_apart_from_a_busy_worker() -> None:
    worker = a_worker(gpus=2, max_jobs=2)
    first, second = (gpu.uuid for gpu in worker.gpus)
    shared = Occupancy(0, frozenset({first, second}), frozenset({first, second}), frozenset({"w_2"}))
    assert why_not_now(worker, shared, Requirements()) is Refusal.HELD_ELSEWHERE
    assert why_not_now(worker, shared, Requirements(gpus=0)) is None
    both = Occupancy(1, frozenset({first, second}), frozenset({second}), frozenset({"w_2"}))
    assert why_not_now(worker, both, Requirements()) is Refusal.HELD_ELSEWHERE
    assert why_not_now(worker, both, Requirements(gpus=2)) is Refusal.BUSY
    own = Occupancy(1, frozenset({first, second}))
    assert why_not_now(worker, own, Requirements()) is Refusal.BUSY
