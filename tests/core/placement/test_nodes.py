"""Jobs over several nodes: which workers take them, which GPUs they get, and what people are told."""

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.configs.bundle import Bundle, Resources
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.jobs.submitting.submission import requirements
from simpletuner_fleet.core.jobs.submitting.submit_request import SubmitRequest
from simpletuner_fleet.core.placement.explain import survey
from simpletuner_fleet.core.placement.forecast import other_ways
from simpletuner_fleet.core.placement.matching import (
    FREE,
    Occupancy,
    Refusal,
    allocate,
    why_never,
    why_not_now,
)
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.workers.worker import Gpu, Worker
from tests.core.builders import a_gpu, a_worker


def spanning(nodes: int, per_node: int = 2) -> Worker:
    gpus = tuple(_gpu(node, index) for node in range(nodes) for index in range(per_node))
    return a_worker(gpus=gpus)


def _gpu(node: int, index: int) -> Gpu:
    return replace(a_gpu(index), uuid=f"GPU-{node}-{index}", node=node)


def over(nodes: int, gpus: int) -> Requirements:
    return Requirements(nodes=nodes, gpus=gpus)


def given(worker: Worker, requires: Requirements, *held: str) -> list[str] | None:
    gpus = allocate(worker, Occupancy(1, frozenset(held)), requires)
    return None if gpus is None else [gpu.uuid for gpu in gpus]


def test_a_job_over_two_nodes_gets_as_many_gpus_of_each() -> None:
    assert spanning(2).nodes == 2
    assert given(spanning(2), over(2, 4)) == ["GPU-0-0", "GPU-0-1", "GPU-1-0", "GPU-1-1"]
    assert given(spanning(2), over(2, 2)) == ["GPU-0-0", "GPU-1-0"]


def test_what_is_held_on_one_node_is_not_made_up_for_on_another() -> None:
    assert given(spanning(2, per_node=4), over(2, 4), "GPU-1-0", "GPU-1-1", "GPU-1-2") is None
    assert why_not_now(spanning(2), Occupancy(1, frozenset({"GPU-1-0"})), over(2, 4)) is Refusal.BUSY


def test_further_nodes_stand_in_for_one_that_is_held_but_never_for_the_first() -> None:
    assert given(spanning(3, per_node=1), over(2, 2), "GPU-1-0") == ["GPU-0-0", "GPU-2-0"]
    assert given(spanning(3, per_node=1), over(2, 2), "GPU-0-0") is None


def test_a_job_for_more_nodes_than_a_worker_has_is_never_its() -> None:
    assert why_never(a_worker(gpus=4), over(2, 4)) is Refusal.NODES_DIFFER
    assert why_never(spanning(2), over(3, 3)) is Refusal.NODES_DIFFER
    assert why_never(spanning(3), over(2, 4)) is None


def test_a_worker_of_several_nodes_takes_no_job_for_one() -> None:
    assert why_never(spanning(2), over(1, 1)) is Refusal.NODES_DIFFER
    assert why_never(spanning(2), over(1, 0)) is Refusal.NODES_DIFFER


def test_each_node_must_have_enough_that_fit() -> None:
    worker = spanning(2)
    small = (*worker.gpus[:3], replace(worker.gpus[3], vram_gb=8.0))
    assert why_never(worker, over(2, 6)) is Refusal.TOO_FEW_GPUS
    assert why_never(replace(worker, gpus=small), Requirements(nodes=2, gpus=4, min_vram_gb=40)) is (
        Refusal.TOO_LITTLE_VRAM
    )
    other = (*worker.gpus[:3], replace(worker.gpus[3], accelerator_type="rocm"))
    wants_cuda = Requirements(nodes=2, gpus=4, accelerator="cuda")
    assert why_never(replace(worker, gpus=other), wants_cuda) is Refusal.WRONG_ACCELERATOR
    named = (*worker.gpus[:3], replace(worker.gpus[3], name="B"))
    assert (
        why_never(replace(worker, gpus=named), over(2, 4), TeamAllowlist((), ("*A*",)))
        is Refusal.NOT_FOR_TEAM
    )


def test_a_node_that_is_away_keeps_its_gpus_from_everybody() -> None:
    worker = spanning(2, per_node=1)
    away = (worker.gpus[0], replace(worker.gpus[1], unusable="unhealthy"))
    assert why_not_now(replace(worker, gpus=away), FREE, over(2, 2)) is Refusal.UNUSABLE


def test_people_are_told_how_many_nodes_there_are() -> None:
    surveyed = survey(over(4, 4), [(a_worker(gpus=8), FREE), (spanning(2), FREE)])
    assert surveyed.code is Code.NODES_MATCH_NONE
    assert (surveyed.params["nodes"], surveyed.params["largest_nodes"]) == (4, 2)
    assert "--nodes 4" in surveyed.fixes[0]


def test_fewer_gpus_are_proposed_in_equal_parts_only() -> None:
    ways = other_ways(over(2, 8), lambda: [(spanning(2, per_node=3), FREE)])
    assert [way.gpus for way in ways] == [6]


def test_a_request_goes_before_the_config_and_both_are_shared_equally() -> None:
    bundle = Bundle(resources=Resources(gpus=4, nodes=2))
    asked = requirements(SubmitRequest(), bundle, "u_1")
    assert (asked.gpus, asked.nodes, asked.gpus_per_node) == (4, 2, 2)
    assert requirements(SubmitRequest(nodes=1), bundle, "u_1").nodes == 1
    for gpus, nodes in ((3, 2), (1, 2), (0, 2), (4, 0), (200, 200)):
        with pytest.raises(Invalid):
            requirements(SubmitRequest(gpus=gpus, nodes=nodes), Bundle(), "u_1")
