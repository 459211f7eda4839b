"""Whatever a worker says of a training, only what can be believed goes further."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.core.jobs.progress import (
    MAX_COUNT,
    MAX_MORE_FIELDS,
    MAX_PHASE_CHARS,
    READERS,
    Progress,
    fields_of,
    is_preparing,
    read_progress,
)

USUAL = {"step": 12, "total": 120, "loss": 0.25, "lr": 1e-4, "rate": 1.2, "eta_s": 90.0, "epoch": 2}
NUMBERS = [name for name in READERS if name != "phase"]

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["NaN", "Infinity"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from([*READERS, "more", "seen"]) | st.text()


def test_what_workers_say_comes_out_as_it_went_in() -> None:
    assert read_progress(USUAL) == Progress(**USUAL)  # type: ignore[arg-type]
    assert read_progress(USUAL).fields() == USUAL
    fetching = {"phase": "fetching data", "done_bytes": 5, "total_bytes": 10}
    assert read_progress(fetching).fields() == fetching
    assert is_preparing(read_progress(fetching))
    assert not is_preparing(read_progress(USUAL))
    assert not is_preparing(None)
    assert fields_of(None) is None


def test_every_field_has_its_reader() -> None:
    assert {*READERS, "more"} == set(Progress.__struct_fields__)


def test_a_field_that_is_not_known_here_survives_if_it_is_plain() -> None:
    extra = {"grad_norm": 0.5, "note": "warm-up", "frozen": True, "vae": None}
    assert read_progress({"step": 1, **extra}).fields() == {"step": 1, **extra}
    assert read_progress({"loss": None}).fields() == {"loss": None}


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["many", "12", [1], {"a": 1}, True, 10**30, -(10**30)])
def test_what_is_no_number_of_a_sensible_size_is_dropped(name: str, value: Any) -> None:
    assert read_progress({name: value, "phase": "x"}).fields() == {"phase": "x"}


@pytest.mark.parametrize("name", ["step", "total", "done_bytes", "total_bytes", "rate", "eta_s"])
@pytest.mark.parametrize("value", [-1, -0.5, 1e300, math.nan, math.inf])
def test_amounts_are_neither_negative_nor_endless(name: str, value: float) -> None:
    assert read_progress({name: value}) == Progress()


def test_a_loss_that_is_not_finite_is_told_as_the_wire_tells_it() -> None:
    for value, text in ((math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), ("NaN", "NaN")):
        assert read_progress({"loss": value, "lr": value}).fields() == {"loss": text, "lr": text}
    assert read_progress({"loss": "nan; drop table"}) == Progress()


def test_too_much_is_cut_or_dropped() -> None:
    assert read_progress({"phase": "x" * 999}).phase == "x" * MAX_PHASE_CHARS
    assert read_progress({"note": "x" * 999, "n" * 99: 1, "nested": {"a": 1}, "list": [1]}) == Progress()
    assert len(read_progress({f"n{at}": at for at in range(99)}).more) == MAX_MORE_FIELDS


def test_a_step_is_a_whole_number() -> None:
    assert read_progress({"step": 3.0, "total": float(MAX_COUNT)}).fields() == {"step": 3, "total": MAX_COUNT}


@given(st.dictionaries(names, anything, max_size=30))
def test_whatever_is_said_can_be_stored_and_read_again_and_is_small(said: dict[str, Any]) -> None:
    progress = read_progress(said)
    text = json.dumps(progress.fields(), allow_nan=False)
    assert read_progress(json.loads(text)) == progress
    assert len(text) < 100_000
