"""Misspelt settings of the trainers that run a program of the user's own."""

from typing import Any

import pytest

from simpletuner_fleet.core.configs.bundle import read_bundle
from simpletuner_fleet.core.configs.launch_settings import check_launch_settings
from simpletuner_fleet.core.errors import Invalid

COMMAND = {"command": ["true"]}
SCRIPT = {"script": "/data/train.py"}


@pytest.mark.parametrize(
    ("trainer", "settings", "wrong", "right"),
    [
        ("command", {"comand": ["true"]}, "comand", "command"),
        ("command", {**COMMAND, "expected_step": 5}, "expected_step", "expected_steps"),
        ("command", {**COMMAND, "--num-proceses": 2}, "--num-proceses", "num_processes"),
        ("accelerate", {"scirpt": "/data/train.py"}, "scirpt", "script"),
        ("accelerate", {**SCRIPT, "mixed_precison": "bf16"}, "mixed_precison", "mixed_precision"),
        ("torchrun", {**SCRIPT, "launcher_arg": []}, "launcher_arg", "launcher_args"),
        ("torchrun", {**SCRIPT, "arg": []}, "arg", "args"),
    ],
)
def test_a_misspelt_setting_is_refused_where_it_stands_with_the_right_name(
    trainer: str, settings: dict[str, Any], wrong: str, right: str
) -> None:
    with pytest.raises(Invalid) as refused:
        read_bundle({"trainer": trainer, "settings": settings})
    assert (
        refused.value.detail == f"The trainer '{trainer}' has no setting '{wrong}'; did you mean '{right}'?"
    )
    assert refused.value.params["errors"][0]["path"] == f"$.settings.{wrong}"


def test_settings_of_the_program_s_own_are_left_alone() -> None:
    for trainer, own in (("command", COMMAND), ("accelerate", SCRIPT), ("torchrun", SCRIPT)):
        bundle = read_bundle({"trainer": trainer, "settings": {**own, "learning_rate": 1e-4, "model": "m"}})
        assert check_launch_settings(bundle) == []
    assert check_launch_settings(read_bundle({"settings": {"expected_step": 1}})) == []


def test_what_is_less_alike_is_only_a_warning() -> None:
    bundle = read_bundle({"trainer": "accelerate", "settings": {**SCRIPT, "precision": "bf16"}})
    (finding,) = check_launch_settings(bundle)
    assert (finding.path, finding.level) == ("$.settings.precision", "warning")
    assert finding.next == "Did you mean 'mixed_precision'?"


def test_of_very_many_settings_only_so_many_are_compared() -> None:
    many = {f"own_{number}": number for number in range(5_000)}
    assert (
        read_bundle({"trainer": "command", "settings": {**COMMAND, **many, "cwdd": "x"}}).trainer == "command"
    )
    long = {"expected_steps" * 10_000: 1}
    assert check_launch_settings(read_bundle({"trainer": "command", "settings": {**COMMAND, **long}})) == []
