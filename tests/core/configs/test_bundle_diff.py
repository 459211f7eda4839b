"""What changed between two versions of a config."""

from typing import Any

import msgspec

from simpletuner_fleet.core.configs.bundle import read_bundle
from simpletuner_fleet.core.configs.bundle_diff import diff_bundles


def diff(was: dict[str, Any], now: dict[str, Any]) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = msgspec.to_builtins(diff_bundles(read_bundle(was), read_bundle(now)))
    return changes


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
