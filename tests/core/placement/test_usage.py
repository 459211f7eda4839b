"""What waits is counted once, however it changes while it waits."""

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import JobState, Requirements
from simpletuner_fleet.core.placement.usage import EVERYBODY, UseLedger, person
from tests.core.builders import NOW, a_job


@pytest.mark.parametrize("gpus_now", [1, 8])
def test_a_job_that_is_edited_while_it_waits_counts_with_the_gpus_that_it_needs_now(gpus_now: int) -> None:
    usage = UseLedger()
    submitted = a_job(requires=Requirements(owner="ann", gpus=4))
    edited = replace(submitted, requires=replace(submitted.requires, gpus=gpus_now))
    usage.see_job(None, submitted)
    usage.see_job(submitted, edited)
    assert (usage.waiting_gpus[person("ann")], usage.waiting_gpus[EVERYBODY]) == (gpus_now, gpus_now)
    assert usage.waiting[person("ann")] == 1
    usage.see_job(edited, replace(edited, state=JobState.DISPATCHED))
    assert (usage.waiting_gpus[person("ann")], usage.waiting[person("ann")]) == (0, 0)


def test_a_job_that_is_left_out_for_a_while_is_counted_again_where_it_stood() -> None:
    usage = UseLedger()
    jobs = [
        a_job(f"j_{at}", requires=Requirements(owner="ann", gpus=2), created_at=NOW + at) for at in (1, 2)
    ]
    for job in jobs:
        usage.see_job(None, job)
    with usage.without(jobs[0]):
        assert (usage.waiting[person("ann")], usage.waiting_gpus[person("ann")]) == (1, 2)
        assert list(usage.submitted_since(EVERYBODY, NOW)) == [NOW + 2]
    assert (usage.waiting[EVERYBODY], usage.waiting_gpus[EVERYBODY]) == (2, 4)
    assert list(usage.submitted_since(person("ann"), NOW)) == [NOW + 1, NOW + 2]
