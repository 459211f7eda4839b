"""Whether a config names a trainer that anybody has."""

from simpletuner_fleet.core.configs.trainer_names import BUILT_IN, check_trainer
from simpletuner_fleet.trainers import registry as trainers
from simpletuner_fleet.trainers.registry import Registry


def test_the_built_in_ones_are_those_of_the_registry() -> None:
    registry = Registry.load(environment={})
    assert all(registry.get(name).name == name for name in BUILT_IN)
    assert len(trainers.BUILT_IN) == len(BUILT_IN)
    assert not any(check_trainer(name) for name in BUILT_IN)


def test_a_misspelt_one_is_an_error_with_the_nearest_right_one() -> None:
    [finding] = check_trainer("simpletunr")
    assert (finding.level, finding.path, finding.next) == (
        "error",
        "$.trainer",
        "Did you mean 'simpletuner'?",
    )


def test_one_that_a_worker_has_is_right_and_any_other_may_be_yet_to_come() -> None:
    assert check_trainer("kohya", {"kohya"}) == []
    [finding] = check_trainer("kohya")
    assert finding.level == "warning"
