"""Who submits is told the reason that a survey of the whole fleet would find, and asks no worker twice."""

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Job, Requirements
from simpletuner_fleet.core.placement.matching import refusal_of
from simpletuner_fleet.core.placement.place import survey_of, why_waiting
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.policy import NO_LIMITS
from simpletuner_fleet.core.workers.worker import Worker
from tests.core.builders import NOW, a_gpu, a_job, a_worker, an_attempt

BIG, SMALL = a_job("j_big", requires=Requirements(gpus=2)), a_job("j_small", seq=2)
DEAD = replace(a_gpu(1, owner="w_1"), unusable="it fell off the bus")


def working(*workers: Worker) -> Roster:
    """The first of the workers runs a job on its first GPU."""
    roster = Roster()
    for worker in workers:
        roster.put_worker(worker)
    roster.see_attempt(None, an_attempt(job_id="j_running"), "")
    return roster


@pytest.mark.parametrize(
    ("roster", "job", "code"),
    [
        (working(a_worker(gpus=2, max_jobs=2)), BIG, Code.ALL_MATCHING_BUSY),
        (working(a_worker(gpus=(a_gpu(0, owner="w_1"), DEAD), max_jobs=2)), BIG, Code.ALL_MATCHING_UNUSABLE),
        (working(a_worker(), a_worker("w_2")), SMALL, Code.BEHIND_OTHERS),
    ],
)
def test_who_submits_is_told_what_a_survey_would_find(roster: Roster, job: Job, code: Code) -> None:
    roster.see_job(None, job)
    assert why_waiting(roster, job, NO_LIMITS, NOW).code is code
    assert survey_of(roster, job).code is code


class Compared(str):
    """A text that counts how often it is compared."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_a_job_that_many_have_refused_is_not_compared_with_all_of_them_for_each_worker() -> None:
    roster, many = Roster(), 300
    workers = [a_worker(f"w_{number}") for number in range(many)]
    for worker in workers:
        roster.put_worker(worker)
    job = a_job(refused_by=tuple(Compared(refusal_of(worker)) for worker in workers[1:]))
    roster.see_job(None, job)
    Compared.times = 0
    picked = roster.pick_worker(job)
    assert picked is not None
    assert picked[0].id == "w_0"
    assert survey_of(roster, job).free == 1
    assert Compared.times < 10 * many
