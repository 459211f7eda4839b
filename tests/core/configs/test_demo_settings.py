"""A misspelt setting of the demo trainer is said, and what it is near to."""

import dataclasses

from simpletuner_fleet.core.configs.bundle import read_bundle
from simpletuner_fleet.core.configs.demo_settings import DEMO_SETTINGS, check_demo_settings
from simpletuner_fleet.trainers.demo.settings import ALIASES, Settings


def test_the_names_are_those_that_the_trainer_itself_has() -> None:
    assert set(DEMO_SETTINGS) == {field.name for field in dataclasses.fields(Settings)} | set(ALIASES)


def test_a_misspelt_one_is_a_warning_with_the_nearest() -> None:
    settings = {"--max-train-step": 5, "seed": 1, "model_family": "flux"}
    near, far = check_demo_settings(read_bundle({"trainer": "demo", "settings": settings}))
    assert (near.level, near.path) == ("warning", "$.settings.--max-train-step")
    assert near.detail == "The demo trainer has no setting 'max_train_step': it is ignored."
    assert near.next == "Did you mean 'max_train_steps'?"
    assert (far.path, far.next) == ("$.settings.model_family", None)


def test_other_trainers_settings_are_not_its_own() -> None:
    assert check_demo_settings(read_bundle({"settings": {"x": 1}})) == []
