"""What every end of a job has in common."""

from collections.abc import Callable

import pytest

from simpletuner_fleet.core.events import ORCHESTRATOR
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.job import FINISHING, Job, Results
from simpletuner_fleet.core.jobs.lifecycle import End
from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.core.jobs.requests import stopping
from tests.core.builders import NOW, POLICY, an_attempt, holding
from tests.core.jobs.lifecycle_kit import job_of

ATTEMPT = an_attempt(accepted_at=NOW, started_at=NOW)


def a_finishing_job() -> Job:
    return job_of(lifecycle.progressed(holding(), ATTEMPT, Progress(phase=FINISHING), now=NOW))


def cancelled(job: Job) -> Job:
    return job_of(stopping.cancel(job, ATTEMPT, explicit_accept=True, actor=ORCHESTRATOR, now=NOW))


@pytest.mark.parametrize(
    "end",
    [
        lambda job: lifecycle.lost(cancelled(job), ATTEMPT, "no heartbeat", POLICY, now=NOW),
        lambda job: lifecycle.failed(cancelled(job), ATTEMPT, End(exit_code=1), POLICY, now=NOW),
        lambda job: stopping.stopped(cancelled(job), ATTEMPT, End(), POLICY, now=NOW),
        lambda job: lifecycle.failed(job, ATTEMPT, End(exit_code=1), POLICY, now=NOW),
    ],
)
def test_of_a_job_that_was_cancelled_or_failed_nothing_is_on_its_way(end: Callable[[Job], Decision]) -> None:
    job = a_finishing_job()
    assert job.results is Results.PENDING
    ended = job_of(end(job))
    assert ended.terminal
    assert ended.results is Results.NONE
