"""The command itself: what it lists, when it refuses, what its exit status says, and two benchmarks for real."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.__main__ import may_run, run_benchmark
from bench.catalogue import BENCHMARKS, Benchmark
from bench.machine import Machine
from bench.options import QUICK, Options
from bench.programs import BenchmarkFailed
from bench.rows import Results, Verdict
from bench.self_test import backlog_on_slow_server
from bench.targets import HEARTBEATS_KEPT, HEARTBEATS_NEW_TLS

ROOT = Path(__file__).parents[2]


def bench(*arguments: str) -> "subprocess.CompletedProcess[str]":
    argv = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_list_names_every_benchmark_with_its_targets() -> None:
    listed = bench("--list")
    assert listed.returncode == 0
    for name, benchmark in BENCHMARKS.items():
        assert f"\n{name}: {benchmark.title}" in f"\n{listed.stdout}"
        assert all(target.what in listed.stdout for target in benchmark.targets)
    assert "(only when named)" in listed.stdout


def test_an_unknown_name_is_refused() -> None:
    refused = bench("nothing-like-it")
    assert refused.returncode == 2
    assert "there is no benchmark nothing-like-it" in refused.stderr


def test_a_full_run_on_a_busy_machine_is_refused_and_a_forced_one_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    busy = Machine(
        cores=2, memory_gib=4.0, kernel="", architecture="", versions={}, load=5.5, busy_percent=90.0
    )
    assert not may_run(busy, forced=False)
    refusal = capsys.readouterr().out
    assert "refused: the machine is not idle: load average 5.5" in refusal
    assert "--even-if-busy" in refusal
    assert may_run(busy, forced=True)
    assert "warning: the machine is not idle: load average 5.5" in capsys.readouterr().out


def test_rows_of_a_benchmark_that_breaks_off_are_missing() -> None:
    def measure(options: Options, results: Results) -> None:
        results.judge(HEARTBEATS_KEPT, [9_000.0])
        raise BenchmarkFailed("the server went away")

    targets = (HEARTBEATS_KEPT, HEARTBEATS_NEW_TLS)
    results = run_benchmark("b", Benchmark(title="t", targets=targets, measure=measure), QUICK)
    assert [row.verdict for row in results.rows] == [Verdict.PASS, Verdict.MISSING]
    assert "the server went away" in results.rows[1].note
    assert not results.passed


@pytest.mark.e2e
def test_without_slurm_its_row_is_missing_and_the_run_does_not_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    ended = bench("slurm", "--quick")
    assert ended.returncode == 1
    assert "1 missing" in ended.stdout


@pytest.mark.e2e
def test_two_benchmarks_run_for_real(tmp_path: Path) -> None:
    """Nothing is said of how fast they are: the machine that runs the tests may be busy."""
    file = tmp_path / "results.json"
    ended = bench("agent", "store", "--quick", "--json", str(file))
    report = json.loads(file.read_text())
    rows = {row["what"]: row for results in report["results"] for row in results["rows"]}
    assert 5 < rows["agent at rest, resident"]["figure"]["median"] < 500
    assert rows["transitions, 64 callers"]["figure"]["median"] > 1
    judged = [row["verdict"] for row in rows.values() if row["target"]]
    assert set(judged) <= {"pass", "FAIL"}
    assert ended.returncode == int("FAIL" in judged)
    assert "load average" in ended.stdout


@pytest.mark.e2e
def test_the_backlog_row_fails_on_a_server_that_each_queued_job_makes_slower() -> None:
    (row,) = (row for row in backlog_on_slow_server().rows if row.target)
    assert row.verdict is Verdict.FAIL
    assert row.ratio is not None
    assert row.ratio.median < 0.7
