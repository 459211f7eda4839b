"""What changed between two versions of a config."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from simpletuner_fleet.core.configs.bundle import Bundle, read_bundle
from simpletuner_fleet.core.configs.bundle_diff import (
    MOST_COUNTED,
    MOST_KEY_CHARS,
    MOST_LISTED,
    compare_bundles,
    diff_bundles,
)

BOUND_BYTES = 4 * 2**20


def diff(was: dict[str, Any], now: dict[str, Any]) -> list[dict[str, Any]]:
    difference = diff_bundles(read_bundle(was), read_bundle(now))
    assert difference.left_out == 0
    changes: list[dict[str, Any]] = msgspec.to_builtins(difference.changes)
    return changes


def compared(*configs: dict[str, Any]) -> list[dict[str, Any]]:
    comparison = compare_bundles([read_bundle(one) for one in configs])
    assert comparison.left_out == 0
    fields: list[dict[str, Any]] = msgspec.to_builtins(
        [{"path": one.path, "values": [_shown(value) for value in one.values]} for one in comparison.fields]
    )
    return fields


def _shown(value: Any) -> Any:
    return "(none)" if value is msgspec.UNSET else value


def test_the_same_config_has_no_changes() -> None:
    assert diff({"seed": 1}, {"settings": {"seed": 1}}) == []


def test_a_flag_is_the_same_with_and_without_dashes() -> None:
    assert diff({"--seed": 1, "--lr": 0.1}, {"seed": 1, "lr": 0.2}) == [
        {"path": "$.settings.lr", "was": 0.1, "is": 0.2}
    ]


def test_a_flag_that_is_there_in_both_spellings_is_compared_by_spelling() -> None:
    assert diff({"--seed": 1, "seed": 2}, {"seed": 2}) == [{"path": "$.settings.--seed", "was": 1}]


def test_what_is_new_has_no_was_and_what_is_gone_has_no_is() -> None:
    assert diff({"old": None}, {"new": None}) == [
        {"path": "$.settings.new", "is": None},
        {"path": "$.settings.old", "was": None},
    ]


def test_changes_are_found_deep_in_lists_and_objects() -> None:
    was = {"settings": {}, "dataloader": [{"id": "a", "crop": True}, {"id": "b"}]}
    now = {"settings": {}, "dataloader": [{"id": "a", "crop": 1}]}
    assert diff(was, now) == [
        {"path": "$.dataloader[0].crop", "was": True, "is": 1},
        {"path": "$.dataloader[1]", "was": {"id": "b"}},
    ]


def test_secrets_files_and_resources_are_compared_too() -> None:
    was = {"settings": {}, "secrets": {"HF_TOKEN": "hf"}, "files": {"a.txt": "1"}, "resources": {"gpus": 1}}
    now = {"settings": {}, "secrets": {"HF_TOKEN": "hf-2"}, "files": {"a.txt": "2"}}
    assert [change["path"] for change in diff(was, now)] == [
        "$.files.a.txt",
        "$.resources.gpus",
        "$.secrets.HF_TOKEN",
    ]


def test_one_difference_in_a_deeply_nested_config_is_found() -> None:
    was: Any = 1
    now: Any = 2
    for _ in range(900):
        was, now = [was], [now]
    (change,) = diff({"x": was}, {"x": now})
    assert change["path"] == "$.settings.x" + "[0]" * 900
    assert (change["was"], change["is"]) == (1, 2)


def test_several_configs_are_compared_by_their_single_values() -> None:
    configs = (
        {"settings": {"lr": 0.1, "on": True, "same": [1, {}]}, "dataloader": [{"id": "a"}]},
        {"settings": {"lr": 0.1, "on": 1, "same": [1, {}]}, "dataloader": [{"id": "b", "crop": None}]},
        {"settings": {"lr": {"max": 1}, "on": True, "same": [1, {}]}, "dataloader": {}},
    )
    assert compared(*configs) == [
        {"path": "$.dataloader", "values": ["(none)", "(none)", {}]},
        {"path": "$.dataloader[0].crop", "values": ["(none)", None, "(none)"]},
        {"path": "$.dataloader[0].id", "values": ["a", "b", "(none)"]},
        {"path": "$.settings.lr", "values": [0.1, 0.1, "(none)"]},
        {"path": "$.settings.lr.max", "values": ["(none)", "(none)", 1]},
        {"path": "$.settings.on", "values": [True, 1, True]},
    ]


def test_one_config_alone_or_none_differs_in_nothing() -> None:
    assert compared() == compared({"lr": 1, "deep": [{}]}) == []


def listed_of_diff(was: Bundle, now: Bundle) -> tuple[list[str], int]:
    difference = diff_bundles(was, now)
    return [one.path for one in difference.changes], difference.left_out


def listed_of_comparison(was: Bundle, now: Bundle) -> tuple[list[str], int]:
    comparison = compare_bundles([was, now])
    return [one.path for one in comparison.fields], comparison.left_out


BOTH = pytest.mark.parametrize("listed", [listed_of_diff, listed_of_comparison])
Listed = Callable[[Bundle, Bundle], tuple[list[str], int]]


@BOTH
def test_of_very_many_differences_the_first_are_listed_and_the_others_counted(listed: Listed) -> None:
    was, now = (read_bundle({"x": [value] * (MOST_LISTED + 7)}) for value in (0, 1))
    paths, left_out = listed(was, now)
    assert paths == [f"$.settings.x[{index}]" for index in range(MOST_LISTED)]
    assert left_out == 7


@BOTH
def test_nobody_counts_differences_for_ever(listed: Listed) -> None:
    was, now = (read_bundle({"x": [value] * (MOST_LISTED + MOST_COUNTED + 7)}) for value in (0, 1))
    assert listed(was, now)[1] == MOST_COUNTED


@pytest.mark.parametrize("beyond", [0, 1])
def test_whether_all_were_counted_is_said(beyond: int) -> None:
    was, now = (read_bundle({"x": [value] * (MOST_LISTED + MOST_COUNTED + beyond)}) for value in (0, 1))
    changed, compared = diff_bundles(was, now), compare_bundles([was, now])
    assert changed.left_out == compared.left_out == MOST_COUNTED
    assert changed.left_out_at_least is compared.left_out_at_least is bool(beyond)


@BOTH
def test_a_long_name_of_many_values_is_not_repeated_in_memory_for_each(listed: Listed) -> None:
    long, count = "k" * 100_000, 2_000
    was, now = (read_bundle({long: [value] * count}) for value in (0, 1))
    tracemalloc.start()
    try:
        paths, _ = listed(was, now)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert used < BOUND_BYTES
    assert paths[0] == f"$.settings.{long[: MOST_KEY_CHARS - 1]}…[0]"
