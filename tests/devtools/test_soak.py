"""`./dev soak` in small, and what it would say of a program that grows."""

import pytest

from devtools.soak import MIB, Sample, drift, main


def test_a_few_jobs_run_once_each_and_nothing_grows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--jobs", "12"]) == 0
    assert "every job ran once" in capsys.readouterr().out


def samples(*, memory: int = 0, files: int = 0, disk: int = 0) -> list[Sample]:
    return [
        Sample(
            at * 100,
            {"server": 60 * MIB + at * memory},
            {"server": 30 + at * files},
            {"server": at * MIB, "worker-0": 1000 + at * disk},
        )
        for at in range(40)
    ]


def test_what_grows_is_named_and_what_does_not_is_not() -> None:
    assert drift(samples()) == []
    assert [line.split(" went")[0] for line in drift(samples(memory=MIB))] == ["memory of server"]
    assert [line.split(" went")[0] for line in drift(samples(files=1))] == ["files of server"]
    assert [line.split(" went")[0] for line in drift(samples(disk=MIB))] == ["disk of worker-0"]
