import re
from pathlib import Path

import pytest

from devtools.diagrams import TARGET, document, main
from simpletuner_fleet.core.jobs.job import JOB_TRANSITIONS, AttemptState, JobState, Outcome
from simpletuner_fleet.core.workers.worker import WorkerStatus


def test_the_page_in_the_repository_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().out
    assert TARGET.read_text(encoding="utf-8") == document()


def test_the_check_fails_for_a_missing_or_an_old_page_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "states.md"
    assert main(["--check"], page) == 1
    page.write_text(document() + "an afterthought\n", encoding="utf-8")
    assert main(["--check"], page) == 1
    assert "./dev diagrams" in capsys.readouterr().out
    assert main([], page) == 0
    assert main(["--check"], page) == 0


def test_an_unknown_argument_writes_nothing(tmp_path: Path) -> None:
    page = tmp_path / "states.md"
    assert main(["--chekc"], page) == 2
    assert not page.exists()


def test_the_drawing_has_every_edge_of_the_table_and_no_other() -> None:
    jobs = document().partition("## Workers")[0]
    drawn = re.findall(r"^    (\w+) --> (\w+): (.+)$", jobs, flags=re.MULTILINE)
    assert sorted(drawn) == sorted(
        (state.value, after.value, given.value) for (state, given), after in JOB_TRANSITIONS.items()
    )


def test_every_state_status_and_outcome_is_told() -> None:
    page = document()
    for name in (*JobState, *WorkerStatus, *AttemptState, *Outcome):
        assert f"`{name.value}`" in page
