"""A job whose error is blank is shown like any other; older workers could leave such jobs in the database."""

import pytest

from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.queries.read_models import SeenJob
from simpletuner_fleet.web.parts.jobs.rows import line_of
from simpletuner_fleet.web.parts.jobs.state import state_sentence
from tests.store.samples import job

BLANK = ("", " \n", "\x1c", "\u2028 \t")


@pytest.mark.parametrize("error", BLANK)
def test_a_blank_error_says_nothing_and_breaks_no_page(error: str) -> None:
    failed = SeenJob(job=job(1, state=JobState.FAILED, error=error))
    assert (line_of(failed), state_sentence(failed)) == ("", "")


def test_of_a_longer_error_the_first_line_is_shown() -> None:
    failed = SeenJob(job=job(1, state=JobState.FAILED, error="\n the disk is full \nTraceback"))
    assert (line_of(failed), state_sentence(failed)) == ("the disk is full ", "the disk is full ")
