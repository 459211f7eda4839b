"""Lines of numbers and progress bars in, points and curves out."""

import json
import math
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simpletuner_fleet.core.training.metrics import (
    KEY,
    MAX_KEYS,
    eta_s,
    key_of,
    last_bar,
    rate_of,
    read_bar,
    read_point,
)
from simpletuner_fleet.trainers.demo.output import progress

steps = st.integers(0, 2**53)
numbers = st.floats(allow_nan=True, allow_infinity=True)
names = st.text(st.sampled_from("abcxyz_09.-"), min_size=1, max_size=20).filter(
    lambda name: (
        name.strip(".") == name and name not in ("step", "global_step", "total", "time", "at", "metrics")
    )
)


def same(left: float, right: float) -> bool:
    return left == right or (math.isnan(left) and math.isnan(right))


@given(steps, st.dictionaries(names, numbers, max_size=8))
def test_a_flat_line_and_a_nested_one_tell_the_same(step: int, values: dict[str, float]) -> None:
    flat = read_point(json.dumps({"step": step, **values}))
    nested = read_point(json.dumps({"schema_version": 1, "timestamp": 5.0, "step": step, "metrics": values}))
    assert flat
    assert nested
    assert (flat.step, nested.step, nested.at) == (step, step, 5.0)
    for point in (flat, nested):
        assert point.values.keys() == values.keys()
        assert all(same(point.values[name], value) for name, value in values.items())


@given(st.text() | st.binary())
def test_whatever_else_a_line_holds_it_is_no_point_or_a_sound_one(line: str | bytes) -> None:
    point = read_point(line)
    assert point is None or (point.step >= 0 and all(KEY.fullmatch(key) for key in point.values))


def test_nan_and_infinity_are_kept_and_text_flags_and_lists_are_not() -> None:
    point = read_point('{"step": 3, "loss": NaN, "norm": -Infinity, "who": "me", "ok": true, "all": [1]}')
    assert point
    assert math.isnan(point.values["loss"])
    assert point.values["norm"] == -math.inf
    assert set(point.values) == {"loss", "norm"}


def test_a_line_tells_its_time_and_how_many_steps_there_are() -> None:
    point = read_point('{"step": 3, "total": 50, "time": "2026-01-01T00:00:00Z", "loss": 1}')
    assert point
    assert (point.at, point.total, point.values) == (1767225600.0, 50, {"loss": 1.0})


def test_lines_without_a_usable_step_are_no_points() -> None:
    for line in ('{"loss": 1}', '{"step": -1}', '{"step": 1.5}', '{"step": true}', "[1]", "{", "[" * 9000):
        assert read_point(line) is None
    assert read_point('{"step": 1, "x": ' + "1" * 400 + "}") is not None


@given(st.text(max_size=100))
def test_any_name_becomes_a_key(name: str) -> None:
    assert KEY.fullmatch(key_of(name))
    assert key_of(name).strip(".")


def test_a_line_with_very_many_numbers_keeps_the_first_of_them() -> None:
    point = read_point(json.dumps({"step": 1, **{f"k{at}": at for at in range(MAX_KEYS + 9)}}))
    assert point
    assert len(point.values) == MAX_KEYS


@given(
    st.integers(1, 10**6).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))),
    st.floats(0.01, 1000),
)
def test_the_demo_trainers_bar_is_read_back(steps: tuple[int, int], rate: float) -> None:
    step, total = steps
    bar = read_bar(progress.line(step, total, 9.0, rate, "loss=0.1234, lr=1e-05"))
    assert bar
    assert (bar.step, bar.total, bar.of_training) == (step, total, True)
    assert bar.values == {"loss": 0.1234, "lr": 1e-5}
    assert bar.rate
    assert math.isclose(bar.rate, rate, rel_tol=0.5)


def test_bars_of_other_programs_are_read_or_passed_over() -> None:
    slow = read_bar("Steps:  10%|█         | 12/120 [00:30<1:04:30, 2.50s/it, lr=5e-5, step_loss=nan]")
    assert slow
    assert (slow.rate, slow.eta_s) == (0.4, 3870.0)
    assert math.isnan(slow.values["step_loss"])
    assert read_bar("100%|██| 7/7 [00:01<?, ?it/s]") is not None
    assert read_bar("Loss is 5/7 [today]") is None
    text = "\r".join(
        (
            "Steps:  10%|#| 12/120 [00:30<01:30, 1.50it/s]",
            "Loading shards:  50%|#####     | 1/2 [00:00<00:00, 3.10it/s]",
            "done",
        )
    )
    bar = last_bar(text)
    assert bar
    assert bar.step == 12


def repeated(*texts: str) -> st.SearchStrategy[str]:
    return st.builds(lambda text, count: text * count, st.sampled_from(texts), st.integers(1, 240))


clocks = repeated("1:", "59:", "9999999:", "00").map(lambda text: text.removesuffix(":"))
amounts = st.floats().map(repr) | repeated("1", "9", "0", "\u0661") | st.just("0." + "0" * 320 + "1")
bars = st.builds(
    "Steps: 1%|#| {}/{} [00:01<{}, {}{}, loss={}]".format,
    st.just("1") | repeated("9"),
    st.just("2") | repeated("9"),
    st.just("?") | clocks,
    amounts,
    st.sampled_from(("it/s", "s/it")),
    amounts,
)


@settings(max_examples=300)
@example("Steps:   1%|#| 1/2 [00:00<" + ":".join(["1"] * 230) + ", 1.00it/s]")
@example("Steps:   1%|#| 1/2 [00:00<00:01, 0." + "0" * 320 + "1s/it]")
@given(st.text() | bars)
def test_whatever_a_line_holds_it_is_no_bar_or_a_sound_one(line: str) -> None:
    bar = read_bar(line)
    last_bar(line)
    if bar is not None:
        assert 0 <= bar.step <= bar.total < 10**15
        assert bar.rate is None or 0 < bar.rate < math.inf
        assert bar.eta_s is None or 0 <= bar.eta_s < math.inf
        assert all(KEY.fullmatch(key) for key in bar.values)


def test_the_newest_bar_that_names_the_training_or_a_loss_tells_where_it_is() -> None:
    judged = "Validating: 100%|####| 50/50 [00:10<00:00, 5.00it/s, loss=0.3]"
    trained = "Training:  12%|#   | 120/1000 [01:00<07:20, 2.00it/s]"
    drawn = "100%|####| 4/4 [00:01<00:00, 4.00it/s]"
    for printed, step in (
        ((judged, trained), 120),
        ((judged, trained, drawn), 120),
        ((trained, judged), 50),
        ((drawn,), 4),
    ):
        bar = last_bar("\r".join(printed))
        assert bar is not None
        assert bar.step == step


@example([(0, 0.0), (1, 5e-324)], 1, 2)
@given(st.lists(st.tuples(steps, st.floats(0, 1e12)), max_size=3), steps, st.none() | steps)
def test_a_rate_and_an_eta_are_finite_or_none(
    recent: list[tuple[int, float]], step: int, total: int | None
) -> None:
    rate = rate_of(recent)
    assert rate is None or 0 < rate < math.inf
    left_s = eta_s(step, total, rate)
    assert left_s is None or 0 <= left_s < math.inf


@pytest.mark.parametrize("value", ["1" * 5_000, "-" + "9" * 400, "1e400", "[1]", "{}"])
def test_what_is_no_sensible_number_is_no_step_and_no_total(value: str) -> None:
    assert read_point(f'{{"step": {value}, "loss": 1}}') is None
    point = read_point(f'{{"step": 1, "total": {value}, "time": {value}, "loss": 1}}')
    assert point is None or (point.total, point.at) == (None, None)


def test_a_long_line_that_is_no_bar_costs_no_time() -> None:
    assert last_bar("a" + " " * 1_000_000 + "\r" + "5% " * 300_000) is None


HOSTILE = (
    "Steps: 3%| | 3/9 [0<0, 1a/" + "b" * 480,
    "Steps: 3%| | 3/9 [0<0, 1a/s, " + "b" * 460 + "]",
    "1" * 500 + "%|]",
    "Steps: 3%| |" + " " * 480 + "]",
)


@pytest.mark.parametrize("line", HOSTILE, ids=("without an end", "one long word", "digits", "spaces"))
def test_lines_that_are_almost_bars_cost_no_time_either(line: str) -> None:
    """A job prints what it likes: the first of these took six milliseconds each."""
    began = time.process_time()
    last_bar("\r".join([line] * 5_000))
    assert time.process_time() - began < 5


AS_ONE_PATTERN = re.compile(
    r"^(?P<description>[^|]*?):?\s*(?P<percent>\d{1,3})%\|[^|]*\|\s*"
    r"(?P<step>\d{1,15})/(?P<total>\d{1,15})\s*\[(?P<elapsed>[\d:]+)<(?P<left>[\d:]+|\?)"
    r"(?:,\s*(?P<rate>[\d.]+|\?)(?P<unit>[^\s,\]/]*/[^\s,\]]+))?(?P<facts>[^\]]*)\]"
)
PARTS = ("Steps", " ", ":", "::", "7", "10", "1234", "%", "%|", "|", "##", " 3/9 ", "[00:01<00:09", "[1<?")
MORE_PARTS = (", 2.5it/s", ", ?it/s", ", loss=0.5", ", a b=1", "]", "/", "=")


@settings(max_examples=500)
@given(st.lists(st.sampled_from((*PARTS, *MORE_PARTS)), max_size=14))
def test_a_bar_is_read_as_one_pattern_would_read_it(parts: list[str]) -> None:
    for line in ("".join(parts), "Steps: 10%|# | 3/9 [00:01<00:09" + "".join(parts)):
        bar, plain = read_bar(line), AS_ONE_PATTERN.match(line.strip())
        is_bar = plain is not None and 0 < int(plain["total"]) >= int(plain["step"])
        assert (bar is not None) == is_bar, line
        if bar is not None and plain is not None:
            assert (bar.step, bar.total) == (int(plain["step"]), int(plain["total"]))
            assert bar.description == plain["description"].strip()


def test_rate_and_eta_are_told_once_they_can_be() -> None:
    assert rate_of([]) is rate_of([(1, 1.0)]) is rate_of([(1, 1.0), (2, 1.0)]) is None
    assert rate_of([(10, 0.0), (15, 2.0), (30, 10.0)]) == 2.0
    assert eta_s(30, 100, 2.0) == 35.0
    assert eta_s(30, None, 2.0) is eta_s(30, 100, None) is None


@pytest.mark.parametrize(("word", "value"), [("NaN", math.nan), ("Infinity", math.inf), ("-inf", -math.inf)])
def test_what_strict_json_must_put_into_words_is_a_value_too(word: str, value: float) -> None:
    point = read_point(json.dumps({"step": 3, "loss": word, "note": "none"}))
    assert point is not None
    assert list(point.values) == ["loss"]
    assert point.values["loss"] == pytest.approx(value, nan_ok=True)
