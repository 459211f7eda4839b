"""When a training counts as gone wrong, and what follows."""

import math
from typing import Any

import pytest

from simpletuner_fleet.core.configs.bundle import read_bundle
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.submitting.submit_request import with_watchdog
from simpletuner_fleet.core.training.metrics import Point
from simpletuner_fleet.core.training.watchdog import (
    GIB,
    Finding,
    Rules,
    Watch,
    Watchdog,
    disk_least,
    duration_text,
    merged,
    read_watchdog,
    rules_of,
    verdict_of,
)


def point(step: int, loss: float, key: str = "loss") -> Point:
    return Point(step=step, values={key: loss})


def watch(resumed_from: int | None = None, **rules: Any) -> Watch:
    return Watch(Rules(**rules), 0.0, resumed_from)


def progress(
    one: Watch, now: float, step: int | None, total: int | None = None, *, paused: bool = False
) -> list[str]:
    return [finding.id for finding in one.saw_progress(now, step, total, paused=paused)]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("key", ["loss", "train_loss", "step_loss"])
def test_one_loss_that_is_no_number_is_found_at_its_step(loss: float, key: str) -> None:
    (finding,) = watch().saw_points([point(59, 0.5, key), point(60, loss, key), point(61, loss, key)])
    assert (finding.id, finding.trouble, finding.resume_below) == ("nan-60", "nan", 60)
    assert finding.data["key"] == key
    assert finding.policy == "fail"


def test_other_values_may_be_what_they_like() -> None:
    assert watch().saw_points([Point(step=1, values={"loss": 1.0, "grad_norm": math.nan})]) == []


def test_so_many_in_a_row_must_be_bad_as_was_asked_for() -> None:
    one = watch(nan_points=3)
    bad = [point(step, math.nan) for step in (1, 2, 4, 5)]
    assert one.saw_points([*bad[:2], point(3, 1.0), *bad[2:]]) == []
    (finding,) = one.saw_points([point(6, math.nan)])
    assert finding.resume_below == 4
    assert "from step 4 on, 3 times in a row" in finding.text


def test_a_step_told_twice_counts_once() -> None:
    one = watch(nan_points=2)
    assert one.saw_points([point(7, math.nan), point(7, math.nan, "train_loss")]) == []


def test_a_loss_that_recovers_is_found_again_when_it_is_lost_again() -> None:
    losses = [math.nan, math.nan, 1.0, math.nan]
    findings = watch(nan="ignore").saw_points([point(step, loss) for step, loss in enumerate(losses)])
    assert [one.id for one in findings] == ["nan-0", "nan-3"]


def test_findings_that_are_ignored_end_some_time() -> None:
    losses = [point(step, math.nan if step % 2 else 1.0) for step in range(200)]
    assert len(watch(nan="ignore").saw_points(losses)) == 20


def test_a_checkpoint_that_gave_no_good_step_is_spoiled_itself() -> None:
    (finding,) = watch(resumed_from=50).saw_points([point(51, math.nan)])
    assert finding.resume_below == 50
    (later,) = watch(resumed_from=50).saw_points([point(51, 1.0), point(52, math.nan)])
    assert later.resume_below == 52


def test_no_step_for_too_long_is_found_once_and_again_after_a_step() -> None:
    one = watch(stall_s=100.0)
    assert progress(one, 10.0, 1) == []
    assert progress(one, 109.0, 1) == []
    assert progress(one, 110.0, 1) == ["stall-1"]
    assert progress(one, 500.0, 1) == []
    assert progress(one, 501.0, 2) == []
    assert progress(one, 601.0, 2) == ["stall-2"]


def test_the_first_step_may_take_longer() -> None:
    one = watch(stall_s=100.0, stall_first_s=1000.0)
    assert progress(one, 999.0, None) == []
    assert progress(one, 1000.0, None) == ["stall-at-start"]


def test_a_pause_is_no_stall() -> None:
    one = watch(stall_s=100.0)
    progress(one, 0.0, 1)
    progress(one, 90.0, 1)
    for now in range(100, 5000, 100):
        assert progress(one, float(now), 1, paused=True) == []
    assert progress(one, 4905.0, 1) == []
    assert progress(one, 4910.0, 1) == ["stall-1"]


def test_a_training_that_is_at_its_end_does_not_stall() -> None:
    one = watch(stall_s=100.0)
    progress(one, 0.0, 10, 10)
    assert progress(one, 5000.0, 10, 10) == []


def test_a_clock_that_goes_back_costs_nothing() -> None:
    one = watch(stall_s=100.0)
    progress(one, 1000.0, 1)
    assert progress(one, 0.0, 1) == []
    assert progress(one, 99.0, 1) == []
    assert progress(one, 100.0, 1) == ["stall-1"]


def test_a_disk_is_warned_of_before_it_is_full_and_each_is_told_once() -> None:
    one = watch(disk="fail")
    total = 100 * GIB
    assert one.saw_disk(5 * GIB, total) == []
    (near,) = one.saw_disk(3 * GIB, total)
    assert (near.id, near.policy) == ("disk-low", "ignore")
    assert one.saw_disk(3 * GIB, total) == []
    (full,) = one.saw_disk(GIB, total)
    assert (full.id, full.policy) == ("disk-full", "fail")
    assert one.saw_disk(GIB, total) == []


@pytest.mark.parametrize(
    ("total", "least"), [(10 * GIB, GIB), (100 * GIB, 2 * GIB), (100_000 * GIB, 20 * GIB)]
)
def test_what_must_be_free_is_a_share_of_the_disk_within_limits(total: int, least: int) -> None:
    assert disk_least(Rules(), total) == least
    assert disk_least(Rules(disk_free_gb=3.0), total) == 3e9


def test_what_is_ignored_is_no_verdict_and_what_restarts_says_from_where() -> None:
    finding = Finding(
        id="nan-6", trouble="nan", text="the loss was NaN at step 6", policy="ignore", resume_below=6
    )
    assert verdict_of(finding) is None
    restart = verdict_of(Finding(**{**_fields(finding), "policy": "restart-from-last-good"}))
    assert restart is not None
    assert (restart.restart, restart.resume_below) == (True, 6)
    failed = verdict_of(Finding(**{**_fields(finding), "policy": "fail"}))
    assert failed is not None
    assert (failed.restart, failed.error) == (False, "watchdog: the loss was NaN at step 6")


def _fields(finding: Finding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in finding.__struct_fields__}


def test_a_submission_stands_before_its_config_and_both_before_the_usual() -> None:
    config = Watchdog(nan="ignore", stall_s=60.0)
    asked = Watchdog(nan="restart-from-last-good")
    assert rules_of(merged(config, asked)) == Rules(nan="restart-from-last-good", stall_s=60.0)


def test_a_config_names_its_watchdog_and_a_wrong_word_is_told_with_its_place() -> None:
    bundle = read_bundle({"settings": {}, "watchdog": {"stall": "fail", "stall_s": 60}})
    assert bundle.watchdog == Watchdog(stall="fail", stall_s=60)
    for wrong in ({"stall": "panic"}, {"stal": "fail"}, {"stall_s": 0}, {"nan_points": 0}):
        with pytest.raises(Invalid) as raised:
            read_bundle({"settings": {}, "watchdog": wrong})
        assert raised.value.params["errors"][0]["path"].startswith("$.watchdog")


def test_the_first_allowance_is_not_shorter_than_the_usual_one() -> None:
    bundle = read_bundle({"settings": {}})
    with pytest.raises(Invalid, match="stall_first_s"):
        with_watchdog(bundle, Watchdog(stall_s=100.0, stall_first_s=50.0))
    assert with_watchdog(bundle, Watchdog(stall_s=100.0)).watchdog.stall_s == 100.0


def test_what_a_newer_orchestrator_says_is_taken_as_far_as_it_is_understood() -> None:
    description = {"nan": "explode", "stall": "fail", "gpu_heat": "fail", "stall_s": "long"}
    assert read_watchdog(description) == Watchdog(stall="fail")


@pytest.mark.parametrize(
    ("seconds", "words"), [(5.0, "5 s"), (1800.0, "30 min"), (7200.0, "2 h"), (90.5, "90.5 s")]
)
def test_times_are_told_as_people_say_them(seconds: float, words: str) -> None:
    assert duration_text(seconds) == words
