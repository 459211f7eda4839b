"""The cache lets go only of what is its own."""

import ctypes
import os
from pathlib import Path

import pytest

from simpletuner_fleet.agent.data.data_cache import DataCache
from simpletuner_fleet.core.configs.datasets import canonical, id_of


@pytest.mark.parametrize("outside", ["{precious}", "../../precious", "../precious", "", ".", ".."])
def test_an_attempt_with_a_path_for_a_name_costs_nothing_outside(tmp_path: Path, outside: str) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "kept").touch()
    cache = DataCache.open(tmp_path / "cache", None)
    try:
        cache.release(outside.format(precious=precious))
        assert (precious / "kept").exists()
        assert (tmp_path / "cache" / "views").is_dir()
    finally:
        cache.close()


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "syncfs"), reason="this system writes out all disks or none"
)
def test_data_is_complete_without_waiting_for_the_other_disks_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang() -> None:
        raise AssertionError("a network disk of this machine does not answer")

    monkeypatch.setattr(os, "sync", hang)
    dataset = id_of(canonical([]))
    cache = DataCache.open(tmp_path / "cache", None)
    try:
        cache.begin("a_1", {dataset: ()}, 1.0)
        cache.finish([dataset])
        assert cache.complete() == [dataset]
    finally:
        cache.close()
