"""`./dev soak` in small, and what it would say of a program that grows."""

import pytest

from devtools.trials.soak import MIB, Sample, drift, main, progress


def test_a_few_jobs_run_once_each_and_nothing_grows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--jobs", "12"]) == 0
    said = capsys.readouterr().out
    assert "every job ran once" in said
    assert "11 of 12 jobs" in said, "it tells how far it is"


def samples(*, memory: int = 0, files: int = 0, disk: int = 0) -> list[Sample]:
    return [
        Sample(
            at * 100,
            {"server": 60 * MIB + at * memory, "worker-0": 40 * MIB + at * memory // 8},
            {"server": 30 + at * files, "worker-0": 12},
            {"server": at * MIB, "worker-0": 1000 + at * disk},
        )
        for at in range(40)
    ]


def test_what_grows_is_named_and_what_does_not_is_not() -> None:
    assert drift(samples()) == []
    assert [line.split(" went")[0] for line in drift(samples(memory=8 * MIB))] == [
        "memory of server",
        "memory of worker-0",
    ]
    assert [line.split(" went")[0] for line in drift(samples(files=1))] == ["files of server"]
    assert [line.split(" went")[0] for line in drift(samples(disk=MIB))] == ["disk of worker-0"]


def test_a_long_run_tells_how_long_it_will_take() -> None:
    line = progress(samples()[10], 4000, 60.0)
    assert line.startswith("1000 of 4000 jobs in 60 s, about 3 minutes left: server 60 MiB")
