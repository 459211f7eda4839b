"""Which files go straight to the bucket, in what parts, and until when a half one is kept."""

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import DirectUnavailable, Invalid
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.training import direct
from simpletuner_fleet.core.training.direct import MIB, Staging
from tests.core.builders import a_job

STAGING = Staging(job_id="j_1", epoch=7, sha256="ab" * 32, size=12 * MIB, part_bytes=5 * MIB)
RUNNING = a_job(state=JobState.RUNNING, epoch=7)


def test_a_key_says_all_that_whoever_leads_next_needs_to_go_on() -> None:
    assert direct.staging_of(STAGING.key) == STAGING
    assert direct.staging_of(f"{STAGING.key}.checked") == STAGING
    for strange in ("direct/probe/x", "direct/../7/" + "ab" * 32 + "-1-x", "objects/ab/" + "ab" * 32, ""):
        assert direct.staging_of(strange) is None


def test_all_parts_are_as_large_as_said_but_the_last() -> None:
    assert [STAGING.part_size(number) for number in (1, 2, 3)] == [5 * MIB, 5 * MIB, 2 * MIB]
    for number in (0, 4):
        with pytest.raises(Invalid):
            STAGING.part_size(number)
    assert [direct.part_bytes_for(asked) // MIB for asked in (0, 10 * MIB, 10_000 * MIB)] == [5, 10, 32]


@pytest.mark.parametrize("size", [0, direct.LEAST_BYTES - 1, direct.MOST_BYTES + 1])
def test_the_smallest_and_the_largest_go_through_the_orchestrator(size: int) -> None:
    with pytest.raises(DirectUnavailable):
        direct.check_size(size)
    direct.check_size(direct.LEAST_BYTES)
    direct.check_size(direct.MOST_BYTES)


def test_what_is_staged_goes_once_nobody_will_go_on_with_it() -> None:
    ended = replace(RUNNING, state=JobState.COMPLETED, finished_at=100.0)
    for job, stored, gone in (
        (RUNNING, False, False),
        (RUNNING, True, True),
        (None, False, True),
        (replace(RUNNING, epoch=8), False, True),
        (ended, False, True),
        (replace(ended, finished_at=300.0), False, False),
    ):
        assert direct.is_abandoned(STAGING, job, stored=stored, before=200.0) is gone
