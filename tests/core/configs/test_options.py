"""A config against what its trainer takes: types, choices, misspellings, and what belongs together."""

from typing import Any

import pytest

from simpletuner_fleet.core.configs.bundle import read_bundle
from simpletuner_fleet.core.configs.options import (
    MAX_KEPT_BYTES,
    MAX_TRAINERS,
    MAX_VERSIONS,
    Option,
    Options,
    ReportedOptions,
    check_settings,
    least_used,
    newest_releases,
    newest_version,
    version_order,
    with_report,
)

OPTIONS = Options(
    version="4.10.1",
    options=(
        Option(names=("model_family",), kind="text", choices=("sdxl", "flux"), required=True),
        Option(names=("output_dir",), kind="text", required=True),
        Option(names=("data_backend_config",), kind="text", required=True),
        Option(names=("max_train_steps",), kind="int", least=0, most=2147483647),
        Option(names=("learning_rate", "lr"), kind="float", least=1e-9, most=1.5),
        Option(names=("use_ema",), kind="switch"),
        Option(names=("lora_type",), kind="text"),
        Option(names=("lycoris_config",), kind="text"),
        Option(names=("push_to_hub",), kind="switch"),
    ),
    also_read=("checkpointing_steps",),
)
RIGHT: dict[str, Any] = {"model_family": "sdxl", "--max-train-steps": 100, "lr": "1e-4", "use_ema": "false"}


def reported(settings: dict[str, Any], **rest: Any) -> list[tuple[str, str]]:
    findings = check_settings(read_bundle({"settings": settings, "dataloader": [], **rest}), OPTIONS)
    return [(finding.level, f"{finding.detail} {finding.next or ''}".strip()) for finding in findings]


def test_a_right_config_is_found_right() -> None:
    ours = {
        "num_processes": 2,
        "cwd": "/x",
        "checkpointing_steps": 5,
        "__active_tab__": "x",
        "lora_type": None,
    }
    assert reported({**RIGHT, **ours}) == []


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"learning_rat": 1}, "has no option 'learning_rat'. Did you mean 'learning_rate'?"),
        ({"zzz": 1}, "has no option 'zzz'."),
        ({"max_train_steps": "many"}, "'max_train_steps' must be a whole number, not \"many\"."),
        ({"max_train_steps": 1000.0}, "'max_train_steps' must be a whole number, not 1000.0."),
        ({"max_train_steps": True}, "'max_train_steps' must be a whole number, not true."),
        ({"lr": "fast"}, "'lr' must be a number"),
        ({"use_ema": "maybe"}, "'use_ema' must be true or false"),
        (
            {"model_family": "fluxx"},
            "'model_family' must be one of sdxl, flux, not \"fluxx\". Did you mean 'flux'?",
        ),
        ({"lora_type": "lycoris"}, "needs a lycoris_config"),
    ],
)
def test_each_mistake_is_told_with_its_place_and_the_nearest_right_name(
    settings: dict[str, Any], complaint: str
) -> None:
    clean = {key: value for key, value in RIGHT.items() if key.lstrip("-").replace("-", "_") not in settings}
    ((level, detail),) = reported({**clean, **settings})
    assert level == "error"
    assert complaint in detail


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"max_train_steps": -1}, "expects 'max_train_steps' to be at least 0, not -1."),
        (
            {"max_train_steps": 2147483648},
            "expects 'max_train_steps' to be at most 2147483647, not 2147483648.",
        ),
        ({"lr": "2"}, "expects 'lr' to be at most 1.5, not \"2\"."),
        ({"lr": 1e-10}, "expects 'lr' to be at least 1e-09, not 1e-10."),
    ],
)
def test_what_is_beyond_the_bounds_of_the_trainers_own_form_is_odd_and_not_wrong(
    settings: dict[str, Any], warning: str
) -> None:
    clean = {key: value for key, value in RIGHT.items() if key.lstrip("-").replace("-", "_") not in settings}
    assert reported({**clean, **settings}) == [("warning", f"SimpleTuner 4.10.1 {warning}")]
    assert reported({**RIGHT, "lr": 1.5, "--max-train-steps": 0}) == []


def test_what_is_missing_or_said_twice_is_seen_as_a_whole() -> None:
    assert [detail for _level, detail in reported({"use_ema": True})] == [
        "SimpleTuner 4.10.1 needs 'model_family'."
    ]
    assert ("warning", "'use_ema' is set twice: as use_ema and as --use_ema.") in reported(
        {**RIGHT, "--use_ema": True}
    )
    assert reported({**RIGHT, "push_to_hub": True})[0][0] == "warning"
    assert reported({**RIGHT, "push_to_hub": True}, secrets={"HF_TOKEN": "hf"}) == []
    without = check_settings(read_bundle({"settings": RIGHT}), OPTIONS)
    assert [finding.detail for finding in without] == ["SimpleTuner 4.10.1 needs 'data_backend_config'."]


def test_releases_are_ordered_by_number() -> None:
    assert sorted(["4.10.1", "4.9", "4.3.2", "nightly"], key=version_order) == [
        "nightly",
        "4.3.2",
        "4.9",
        "4.10.1",
    ]


def a_release(version: str, chars: int = 0, by: str = "") -> ReportedOptions:
    return ReportedOptions(version=version, options=(), also_read=("x" * chars,), reported_by=by)


def test_the_newest_releases_are_kept() -> None:
    releases = {f"4.{minor}": a_release(f"4.{minor}") for minor in range(MAX_VERSIONS + 3)}
    assert set(newest_releases(releases, ())) == {f"4.{minor}" for minor in range(3, MAX_VERSIONS + 3)}


def test_releases_are_kept_as_far_as_they_fit_and_the_newest_always() -> None:
    third = MAX_KEPT_BYTES // 3
    releases = {version: a_release(version, third) for version in ("4.1", "4.2", "4.3", "4.4")}
    assert set(newest_releases(releases, ())) == {"4.4", "4.3"}
    too_large = {"4.1": a_release("4.1"), "4.2": a_release("4.2", MAX_KEPT_BYTES)}
    assert set(newest_releases(too_large, ())) == {"4.2"}


def test_a_worker_that_invents_releases_drives_out_none_of_another() -> None:
    kept = {"4.9": a_release("4.9", by="w_honest"), "4.8": a_release("4.8", by="w_gone")}
    for number in range(MAX_VERSIONS * 2):
        kept = with_report(kept, a_release(f"999.{number}", by="w_liar"), {"w_honest", "w_liar"})
    assert set(kept) == {"4.8", "4.9", "999.14", "999.15"}
    assert newest_version(kept, {"w_honest"}) == "4.9"


def test_workers_that_came_lied_and_went_leave_room_for_those_that_are_there() -> None:
    kept: dict[str, ReportedOptions] = {}
    for number in range(MAX_VERSIONS * 2):
        kept = with_report(kept, a_release(f"999.{number}", by=f"w_{number}"), {f"w_{number}"})
    kept = with_report(kept, a_release("4.9", by="w_honest"), {"w_honest"})
    assert "4.9" in kept
    assert len(kept) == MAX_VERSIONS
    assert newest_version(kept, {"w_honest"}) == "4.9"


def test_a_release_is_told_anew_only_by_who_told_of_it_or_after_that_one_is_gone() -> None:
    kept = {"4.9": a_release("4.9", by="w_1")}
    assert with_report(kept, a_release("4.9", 7, by="w_2"), {"w_1", "w_2"}) == kept
    for by, workers in (("w_1", {"w_1", "w_2"}), ("w_2", {"w_2"})):
        report = a_release("4.9", 7, by=by)
        assert with_report(kept, report, workers) == {"4.9": report}


def test_releases_of_workers_that_are_gone_count_where_there_are_no_others() -> None:
    gone = {version: a_release(version, by="w_gone") for version in ("4.9", "4.10")}
    assert newest_version(gone, ()) == "4.10"
    assert newest_version({}, ()) is None
    assert newest_version({**gone, "4.2": a_release("4.2")}, ()) == "4.2"


def test_trainers_that_the_fewest_workers_have_make_room_for_another() -> None:
    names = [f"own-{number}" for number in range(MAX_TRAINERS)]
    having = dict.fromkeys(names, 5) | {"own-3": 1}
    assert least_used(names[:-1], having) == []
    assert least_used(names, having) == ["own-3"]
    del having["own-6"]
    assert least_used([*names, "nobodys"], having) == ["nobodys", "own-6"]
