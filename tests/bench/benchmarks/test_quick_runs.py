"""Every benchmark that needs nothing but this machine brings a figure for each of its targets, good or bad."""

import pytest

from bench.__main__ import run_benchmark
from bench.catalogue import BENCHMARKS
from bench.options import QUICK
from bench.rows import Verdict

ALONE = ("latency", "heartbeats", "fleet", "backlog", "agent", "store", "logs", "uploads")


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ALONE)
def test_no_row_is_missing(name: str) -> None:
    results = run_benchmark(name, BENCHMARKS[name], QUICK)
    assert results.rows
    assert [row.what for row in results.rows if row.verdict is Verdict.MISSING] == []
