"""Names for codes: every code of the core has one, and no name stands for a code that does not exist."""

from collections.abc import Iterable

import pytest

from simpletuner_fleet.core.jobs.job import JobState, Target
from simpletuner_fleet.core.people.accounts import Role
from simpletuner_fleet.core.workers.worker import WorkerStatus, WorkerType
from simpletuner_fleet.languages import names


@pytest.mark.parametrize(
    ("table", "codes"),
    [
        (names.JOB_STATUSES, JobState),
        (names.WORKER_STATUSES, WorkerStatus),
        (names.WORKER_STATUS_MEANINGS, WorkerStatus),
        (names.WORKER_TYPES, WorkerType),
        (names.TARGETS, Target),
        (names.ROLES, Role),
    ],
)
def test_a_table_names_the_codes_of_the_core_and_no_others(
    table: dict[str, str], codes: Iterable[str]
) -> None:
    assert sorted(table) == sorted(codes)
