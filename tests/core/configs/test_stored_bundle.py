"""A stored config is read and checked once for many jobs, and no job is told from that."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.configs.stored_bundle import MAX_REMEMBERED_BYTES, read_stored
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.submitting.submit_request import ChosenConfig, SubmitRequest, stored_config

DATASET = "ab" * 32


def chosen(stored: Bundle, **asked: Any) -> ChosenConfig:
    request = msgspec.convert(asked, SubmitRequest)
    text = msgspec.json.encode(stored)
    return stored_config(request, "c", 3, text, saved_by="u_1", author_may_run_locally=True)


@pytest.mark.parametrize("padding", [0, MAX_REMEMBERED_BYTES])
def test_a_stored_config_is_the_same_for_every_job_that_changes_nothing_of_it(padding: int) -> None:
    stored = Bundle(settings={"lr": 1, "text": "x" * padding}, datasets={"pets": DATASET})
    first = chosen(stored)
    changed = chosen(stored, overrides={"lr": 2}, datasets={"dogs": DATASET})
    assert first.bundle == replace(stored, datasets={"pets": f"sha256:{DATASET}"})
    assert read_stored(first.text) == first.bundle
    assert changed.bundle.settings["lr"] == 2
    assert read_stored(changed.text) == changed.bundle
    assert changed.bundle.datasets.keys() == {"pets", "dogs"}
    assert chosen(stored) == first
    assert (chosen(stored).text is first.text) is (padding == 0)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        ({"overrides": {"lr": 2}}, lambda bundle: bundle.settings == {"lr": 2}),
        ({"datasets": {"pets": DATASET}}, lambda bundle: "pets" in bundle.datasets),
        ({"watchdog": {"stall_s": 60.0}}, lambda bundle: bundle.watchdog.stall_s == 60.0),
        ({"publish": {"to": "hf://me/model", "secret": "hf"}}, lambda bundle: bundle.publish is not None),
    ],
)
def test_what_a_request_changes_is_changed_though_the_config_is_remembered(
    asked: dict[str, Any], kept: Callable[[Bundle], bool]
) -> None:
    stored = Bundle(settings={"lr": 1})
    chosen(stored)
    assert kept(chosen(stored, **asked).bundle)
    assert not kept(chosen(stored).bundle)


def test_a_stored_config_that_is_wrong_is_refused_every_time() -> None:
    for _ in range(2):
        with pytest.raises(Invalid, match="references the dataset 'pets'"):
            chosen(Bundle(settings={"data": "dataset://pets"}))
