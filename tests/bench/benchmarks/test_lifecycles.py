import importlib.util
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from bench.benchmarks import lifecycles
from bench.benchmarks.lifecycles import Contestant, measure_in_turns
from bench.options import Options
from bench.peers.task_queue import TaskQueue
from bench.rows import Results, Verdict
from bench.targets import CYCLES_AGAINST_CELERY, CYCLES_AGAINST_DRAMATIQ, CYCLES_ON_POSTGRES

TINY = Options(quick=True, repetitions=1, jobs=20, cycle_workers=4, warm_up_jobs=4)


def test_contestants_take_turns_and_each_round_begins_with_another() -> None:
    turns: list[str] = []

    def contestant(name: str) -> Contestant:
        def rate(jobs: int) -> float:
            turns.append(name)
            return float(jobs + len(turns))

        return Contestant(name, rate)

    rates = measure_in_turns([contestant("a"), contestant("b"), contestant("c")], rounds=2, jobs=10)
    assert turns == ["a", "b", "c", "b", "c", "a"]
    assert rates == {"a": [11.0, 16.0], "b": [12.0, 14.0], "c": [13.0, 15.0]}


def test_a_peer_that_cannot_be_started_is_told_and_never_quoted(tmp_path: Path) -> None:
    def broken(folder: Path) -> AbstractContextManager[TaskQueue]:
        raise ImportError("no module named celery")

    results = Results(benchmark="b", title="t")
    with ExitStack() as stack:
        assert lifecycles._open_peer(stack, "Celery", broken, tmp_path, results) == []
    lifecycles.add_rows({"SQLite": [1.0], "Dramatiq": [0.5]}, results)
    results.complete(lifecycles.TARGETS, "see the notes")
    assert {row.target: row.verdict for row in results.rows} == {
        CYCLES_AGAINST_DRAMATIQ: Verdict.PASS,
        CYCLES_AGAINST_CELERY: Verdict.MISSING,
        CYCLES_ON_POSTGRES: Verdict.MISSING,
    }
    assert results.notes == ["Celery could not be measured: no module named celery"]
    assert not results.passed


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.timeout(400)
def test_life_cycles_run_on_both_databases_and_beside_every_peer_that_is_installed() -> None:
    results = Results(benchmark="lifecycles", title="t")
    lifecycles.measure(TINY, results)
    measured = {row.target for row in results.rows if row.target}
    assert CYCLES_ON_POSTGRES in measured
    peers = {CYCLES_AGAINST_CELERY: "celery", CYCLES_AGAINST_DRAMATIQ: "dramatiq"}
    for target, package in peers.items():
        assert (target in measured) == (importlib.util.find_spec(package) is not None)
