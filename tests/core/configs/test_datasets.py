"""Datasets by content, what a config may say of them, and whom a job that names one is given to."""

from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.configs.bundle import read_bundle
from simpletuner_fleet.core.configs.datasets import (
    canonical,
    check_mounts,
    id_of,
    prefixed_id,
    read_id,
    read_manifest,
    references,
    with_places,
)
from simpletuner_fleet.core.errors import FleetError, Invalid, TooLarge
from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.placement.matching import FREE, Occupancy, bytes_to_move, preference
from simpletuner_fleet.core.placement.roster.roster import CANDIDATES_COMPARED, Roster
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import FileEntry
from tests.core.builders import a_job, a_worker

POLICY = Policy(max_dataset_files=3)
CAT = FileEntry(path="cats/1.png", size=3, sha256="a" * 64)
DOG = FileEntry(path="dogs/größe.png", size=4, sha256="b" * 64)
BIG = Requirements(datasets=(("d_big", 900), ("d_small", 100)))


def test_the_same_files_have_the_same_id_in_any_order() -> None:
    assert canonical([CAT, DOG]) == canonical([DOG, CAT])
    assert id_of(canonical([CAT])) != id_of(canonical([replace(CAT, path="cats/2.png")]))
    assert read_manifest(canonical([DOG, CAT]), POLICY) == (CAT, DOG)


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"\xff",
        b"[]",
        b'{"files":[]}',
        canonical([CAT]).replace(b"dataset/1", b"dataset/9"),
        canonical([CAT]) + b" ",
        canonical([CAT]).replace(b'"files"', b' "files"'),
        canonical([]),
        canonical([replace(CAT, path="../x")]),
        canonical([replace(CAT, path="/etc/passwd")]),
        canonical([replace(CAT, sha256="A" * 64)]),
        canonical([replace(CAT, size=-1)]),
        canonical([replace(CAT, size=0)]),
        canonical([CAT, CAT]),
        canonical([CAT, replace(DOG, path="cats")]),
    ],
)
def test_a_manifest_that_is_not_as_it_should_be_is_refused(manifest: bytes) -> None:
    with pytest.raises(Invalid):
        read_manifest(manifest, POLICY)


def test_a_dataset_has_so_many_files_and_no_more() -> None:
    with pytest.raises(TooLarge):
        read_manifest(canonical(replace(CAT, path=f"{at}.png") for at in range(4)), POLICY)


def test_an_id_is_read_with_or_without_its_prefix() -> None:
    assert read_id(prefixed_id("c" * 64), "$") == read_id("c" * 64, "$") == "c" * 64
    for wrong in ("", "sha256:", "pets", "sha256:" + "C" * 64, "sha256:" + "c" * 63, "md5:" + "c" * 64):
        with pytest.raises(Invalid) as caught:
            read_id(wrong, "$.datasets.pets")
        assert caught.value.params["errors"][0]["path"] == "$.datasets.pets"
        assert "simpletuner data push" in (caught.value.next or "")


def test_references_are_found_wherever_a_string_is() -> None:
    config = {
        "a": "dataset://pets",
        "b": ["--data=${dataset:cats}/train", {"c": "dataset://dogs/sub and ${dataset:pets}"}],
        "d": 7,
        "e": "dataset:nothing dataset:// ${dataset:}",
        "dataset://key": None,
    }
    assert references(config) == {"pets", "cats", "dogs"}


def test_references_become_folders_and_everything_else_stays() -> None:
    places = {"pets": "/cache/pets", "cats": "/cache/cats"}
    config: Any = {
        "a": "dataset://pets/sub",
        "b": ["--x=${dataset:cats}", 7, None, True],
        "c": "dataset://dogs",
    }
    assert with_places(config, places) == {
        "a": "/cache/pets/sub",
        "b": ["--x=/cache/cats", 7, None, True],
        "c": "dataset://dogs",
    }


def test_what_a_config_says_of_datasets_is_checked() -> None:
    bundle = read_bundle({"settings": {}, "datasets": {"pets": "sha256:" + "a" * 64}})
    assert bundle.datasets == {"pets": "sha256:" + "a" * 64}
    for wrong in (
        {"../x": "a" * 64},
        {"": "a" * 64},
        {"pets": "pets"},
        {str(n): "a" * 64 for n in range(17)},
    ):
        with pytest.raises(FleetError):
            read_bundle({"settings": {}, "datasets": wrong})
    assert check_mounts({"x": "b" * 64}, "$") == {"x": "sha256:" + "b" * 64}


def test_the_worker_that_moves_least_comes_first_but_after_a_remote_one() -> None:
    both = a_worker("w_both", gpus=8, datasets=("d_small", "d_big"), data_limit_bytes=1000)
    small = a_worker("w_small", gpus=1, datasets=("d_small",), data_limit_bytes=1000)
    none = a_worker("w_none", gpus=1, data_limit_bytes=1000)
    here = replace(both, id="w_here", local=True)
    assert [bytes_to_move(worker, BIG) for worker in (both, small, none)] == [0, 900, 1000]
    in_order = sorted((here, none, small, both), key=lambda worker: preference(worker, FREE, BIG))
    assert [worker.id for worker in in_order] == ["w_both", "w_small", "w_none", "w_here"]
    assert preference(none, FREE, Requirements()) < preference(both, Occupancy(), Requirements())


def a_roster(holders: int = 1, others: int = 3 * CANDIDATES_COMPARED) -> Roster:
    roster = Roster()
    for at in range(others):
        roster.put_worker(a_worker(f"w_{at}", data_limit_bytes=1000))
    for at in range(holders):
        roster.put_worker(a_worker(f"w_holder_{at}", data_limit_bytes=1000, datasets=("d_big",)))
    return roster


def picked(roster: Roster) -> str | None:
    job = a_job(requires=BIG)
    roster.lines.waiting(job.class_id, job.requires)
    worker = roster.pick_worker(job)
    return worker[0].id if worker else None


def test_who_has_the_data_is_found_among_any_number_of_workers() -> None:
    assert picked(a_roster()) == "w_holder_0"


def test_a_worker_that_let_the_data_go_is_no_holder_any_more() -> None:
    roster = a_roster(holders=2)
    assert roster.holders_of("d_big") == ["w_holder_0", "w_holder_1"]
    roster.put_worker(replace(roster.workers["w_holder_0"], datasets=()))
    assert picked(roster) == "w_holder_1"
    roster.drop_worker("w_holder_1")
    assert roster.holders_of("d_big") == []
    assert picked(roster) == "w_0"


def test_nobody_waits_for_the_worker_that_has_the_data() -> None:
    roster = a_roster(others=1)
    roster.set_reachable("w_holder_0", False)
    assert picked(roster) == "w_0"


def test_a_worker_whose_cache_is_too_small_is_never_picked() -> None:
    roster = Roster()
    roster.put_worker(a_worker(data_limit_bytes=999))
    assert picked(roster) is None
    roster.put_worker(a_worker(data_limit_bytes=1000))
    assert picked(roster) == "w_1"
