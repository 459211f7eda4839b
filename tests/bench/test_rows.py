"""What a benchmark says must be arithmetic one can trust, and nothing passes that was not measured."""

import pytest

from bench.catalogue import BENCHMARKS
from bench.rows import (
    Relation,
    Results,
    Target,
    Verdict,
    compared_row,
    judge,
    judged_row,
    missing_row,
    percentile,
)

SPEED = Target(what="speed", relation=Relation.AT_LEAST, limit=100.0, unit="/s")
RATIO = Target(what="ratio", relation=Relation.AT_LEAST, limit=1.0, unit="x", peer="other")


ALL_TARGETS = [target for benchmark in BENCHMARKS.values() for target in benchmark.targets]


@pytest.mark.parametrize("target", ALL_TARGETS, ids=lambda target: target.what)
def test_each_target_passes_on_its_good_side_and_fails_on_the_other(target: Target) -> None:
    above, under = target.limit * 1.001, target.limit * 0.999
    good, bad = (above, under) if target.relation is Relation.AT_LEAST else (under, above)
    assert judge(good, target) is Verdict.PASS
    assert judge(bad, target) is Verdict.FAIL


@pytest.mark.parametrize("target", ALL_TARGETS, ids=lambda target: target.what)
def test_the_limit_itself_passes_unless_it_must_be_undercut(target: Target) -> None:
    expected = Verdict.FAIL if target.relation is Relation.BELOW else Verdict.PASS
    assert judge(target.limit, target) is expected


def test_the_targets_are_the_promised_ones() -> None:
    assert {target.what: (str(target.relation), target.limit, target.unit) for target in ALL_TARGETS} == {
        "life cycles, SQLite FULL, against Dramatiq": ("at least", 1.0, "x"),
        "life cycles, SQLite FULL, against Celery": ("at least", 3.0, "x"),
        "life cycles, PostgreSQL, against our SQLite": ("at least", 0.7, "x"),
        "submit to trainer running, p50": ("at most", 7.0, "ms"),
        "submit to trainer running, p99": ("at most", 25.0, "ms"),
        "trainer's exit to job completed, p50": ("at most", 30.0, "ms"),
        "trainer's exit to job completed, p99": ("at most", 100.0, "ms"),
        "trainer's exit to start of the next job, p50": ("at most", 50.0, "ms"),
        "trainer's exit to start of the next job, p99": ("at most", 200.0, "ms"),
        "heartbeats, one core, kept connections": ("at least", 8_000.0, "/s"),
        "heartbeats, one core, new TLS connections, resumed": ("at least", 3_000.0, "/s"),
        "server memory per connected worker, plain": ("at most", 25.0, "KiB"),
        "server memory per connected worker, TLS": ("at most", 60.0, "KiB"),
        "dispatch with a large fleet, p99": ("at most", 30.0, "ms"),
        "server CPU with a large fleet": ("below", 25.0, "% of a core"),
        "life cycles, long queue against short": ("at least", 0.95, "x"),
        "agent at rest, resident": ("at most", 60.0, "MiB"),
        "agent at rest, CPU": ("below", 0.5, "% of a core"),
        "slowdown of a trainer that prints": ("below", 2.0, "%"),
        "agent's memory growth while it sends a log": ("below", 32.0, "MiB"),
        "last 1,000 lines of a log as a page": ("below", 1_000.0, "ms"),
        "upload of a checkpoint, against curl": ("at least", 0.8, "x"),
        "agent's memory through an upload, most less least": ("at most", 32.0, "MiB"),
        "starts a second, against Slurm": ("at least", 30.0, "x"),
    }


def test_a_figure_is_judged_by_its_median_and_keeps_its_spread() -> None:
    row = judged_row(SPEED, [90.0, 110.0, 105.0])
    assert row.verdict is Verdict.PASS
    assert row.figure is not None
    assert (row.figure.median, row.figure.low, row.figure.high, row.figure.repetitions) == (105, 90, 110, 3)
    assert judged_row(SPEED, [90.0, 99.0, 110.0]).verdict is Verdict.FAIL


def test_a_ratio_is_taken_round_by_round_and_judged_by_its_median() -> None:
    row = compared_row(RATIO, "/s", ours=[100.0, 300.0, 90.0], peers=[100.0, 200.0, 100.0])
    assert row.verdict is Verdict.PASS
    assert row.ratio is not None
    assert (row.ratio.median, row.ratio.low, row.ratio.high) == (1.0, 0.9, 1.5)
    assert compared_row(RATIO, "/s", [99.0], [100.0]).verdict is Verdict.FAIL


def test_rounds_that_were_not_measured_by_both_are_no_ratio() -> None:
    with pytest.raises(ValueError, match="zip"):
        compared_row(RATIO, "/s", [1.0, 2.0], [1.0])


def test_what_was_not_measured_is_missing_and_does_not_pass() -> None:
    results = Results(benchmark="b", title="t")
    results.judge(SPEED, [200.0])
    results.complete([SPEED, RATIO], "no peer here")
    assert [row.verdict for row in results.rows] == [Verdict.PASS, Verdict.MISSING]
    assert results.rows[-1].note == "no peer here"
    assert results.rows[-1].figure is None
    assert not results.passed


def test_one_failed_row_fails_the_run_and_information_never_does() -> None:
    informed, failed = Results(benchmark="b", title="t"), Results(benchmark="b", title="t")
    assert informed.add("fork", "ms", [3.0, 1.0, 2.0]) == 2.0
    failed.judge(SPEED, [200.0])
    failed.judge(SPEED, [1.0])
    assert (informed.passed, failed.passed) == (True, False)
    assert missing_row(RATIO, "").peer == "other"


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 0.50) == 50
    assert percentile(values, 0.99) == 99
    assert percentile(values, 1.0) == 100
    assert percentile([7.0], 0.99) == 7
