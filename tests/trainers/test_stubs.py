"""Every stub of the trainer does what the real one was seen to do; `./dev real-trainer` compares that with what it does."""

import re

import pytest

from devtools.real_trainer.facts import bar, differences, failure, recorded
from devtools.real_trainer.releases import RELEASES
from simpletuner_fleet.core.jobs.failure import classify
from simpletuner_fleet.core.training.trainer_release import release_of
from simpletuner_fleet.trainers.checkpoints import GUARD
from tests.agent.metrics.test_bar_points import DRAWN
from tests.core.jobs.test_trainer_failures import SEEN
from tests.trainers.simpletuner.test_options import CMD_ARGS
from tests.trainers.simpletuner.test_unmarked_checkpoints import IN_ITS_ORDER

VERSIONS = [release.version for release in RELEASES]
SAME_MISTAKE = {
    "wrong model path": "wrong model path",
    "missing data folder": "missing data folder",
    "unknown optimizer": "unknown optimizer",
    "missing captions": "captions missing",
    "missing lycoris file": "missing lycoris file",
    "out of memory": "GPU out of memory at step 5 of 8",
}
"""What the tests of failures call it, and what the scenario does."""


@pytest.mark.parametrize("version", VERSIONS)
def test_what_was_seen_of_each_release_is_written_down(version: str) -> None:
    facts = recorded(version)
    assert {"bar", "checkpoint", "fails"} <= facts.keys()
    assert set(SAME_MISTAKE.values()) <= facts["fails"].keys()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_of_releases_says_what_was_seen(version: str) -> None:
    release, facts = release_of(version), recorded(version)
    assert release.guard == (GUARD in facts["checkpoint"])
    assert release.exit_codes == all(one["exit_code"] != 0 for one in facts["fails"].values())


def test_the_checkpoints_of_the_tests_hold_the_files_that_the_real_ones_do() -> None:
    own = {re.sub(r"training_state-\w+", "training_state-NAME", name) for name in IN_ITS_ORDER}
    real = {
        re.sub(r"training_state-\w+", "training_state-NAME", one) for one in recorded("3.1.6")["checkpoint"]
    }
    assert own <= real


def test_the_bars_of_the_tests_are_labelled_as_the_real_ones_are() -> None:
    assert bar(DRAWN.format(percent=5, step=1, loss=1.0)) == recorded("3.1.6")["bar"]
    assert (recorded("4.10.1")["bar"] or "").startswith("Epoch N/N, Steps:")
    assert "step_loss" in recorded("4.10.1")["bar"]


@pytest.mark.parametrize("name", [name for name in SEEN if name.partition(" (")[0] in SAME_MISTAKE])
def test_what_the_tests_let_it_print_ends_as_the_real_one_did(name: str) -> None:
    mistake, _, version = name.partition(" (")
    known = recorded(version.rstrip(")"))["fails"][SAME_MISTAKE[mistake]]
    printed, code, _ = SEEN[name]
    assert code == known["class"]
    assert classify(known["exit_code"], None, printed, None).code == known["class"]
    stub = failure({"failure": {"class": code}}, known["exit_code"], printed)
    assert set(stub["raised"]) <= set(known["raised"]), "it raises what the real one never did"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_parser_of_the_tests_has_options_of_the_real_one(version: str) -> None:
    for name, option in recorded(version).get("options", {}).items():
        line = next((line for line in CMD_ARGS.splitlines() if f'"--{name}"' in line), None)
        if line is None:
            continue
        kinds = {"int": "type=int", "float": "type=float", "switch": "const=True"}
        assert kinds.get(option["kind"], "") in line, (name, option)


def test_a_trainer_that_does_otherwise_is_noticed() -> None:
    assert differences("3.1.6", {"bar": recorded("3.1.6")["bar"]}) == []
    assert differences("3.1.6", {"bar": "Progress: loss"}) != []
