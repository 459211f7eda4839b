"""GPUs that are handed to nobody, and what a job is told of them."""

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.placement.matching import FREE, Occupancy, Refusal, allocate, why_not_now
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.workers.gpu_health import OCCUPIED, UNHEALTHY, Health, with_health
from tests.core.builders import a_gpu, a_job, a_worker

GPUS = (a_gpu(0), a_gpu(1))
FIRST, SECOND = (gpu.uuid for gpu in GPUS)
FINE = Health(True, 0.2)


def unusable(
    seen: dict[str, Health], held: tuple[str, ...] = (), before: tuple[str, str] = ("", "")
) -> list[str]:
    gpus = tuple(replace(gpu, unusable=was) for gpu, was in zip(GPUS, before, strict=True))
    return [gpu.unusable for gpu in with_health(gpus, seen, held)]


def test_a_gpu_is_left_alone_when_it_is_broken_or_somebody_else_holds_more_than_a_gibibyte() -> None:
    assert unusable({FIRST: Health(False, 0.0), SECOND: FINE}) == [UNHEALTHY, ""]
    assert unusable({FIRST: Health(True, 1.0), SECOND: Health(True, 1.1)}) == ["", OCCUPIED]
    assert unusable({FIRST: Health(False, 50.0)}) == [UNHEALTHY, ""]
    assert unusable({FIRST: Health(None, 2.0)}) == [OCCUPIED, ""]


def test_what_is_not_known_changes_nothing() -> None:
    before = (OCCUPIED, UNHEALTHY)
    assert unusable({}, before=before) == list(before)
    assert unusable({FIRST: Health(), SECOND: Health()}, before=before) == list(before)
    assert unusable({FIRST: Health(True, float("nan")), "GPU-strange": Health(False)}) == ["", ""]


def test_a_gpu_that_is_fine_again_is_handed_out_again() -> None:
    assert unusable({FIRST: FINE, SECOND: Health(True, None)}, before=(OCCUPIED, UNHEALTHY)) == ["", ""]


def test_a_gpu_that_a_job_holds_is_not_taken_for_somebody_elses_but_may_break() -> None:
    assert unusable({FIRST: Health(True, 60.0), SECOND: Health(False)}, (FIRST, SECOND)) == ["", UNHEALTHY]


def test_unusable_gpus_are_passed_over_and_the_job_is_told_why_it_waits() -> None:
    one, two = Requirements(gpus=1), Requirements(gpus=2)
    half = a_worker(gpus=(replace(GPUS[0], unusable=OCCUPIED), GPUS[1]))
    assert allocate(half, FREE, one) == (half.gpus[1],)
    assert allocate(half, FREE, two) is None
    assert why_not_now(half, FREE, one) is None
    assert why_not_now(half, FREE, two) is Refusal.UNUSABLE
    assert why_not_now(half, Occupancy(1, frozenset({SECOND})), one) is Refusal.BUSY
    several = replace(half, max_jobs=2)
    assert why_not_now(several, Occupancy(1, frozenset({SECOND})), one) is Refusal.BUSY
    assert why_not_now(several, Occupancy(1, frozenset({SECOND})), two) is Refusal.UNUSABLE
    assert why_not_now(several, FREE, Requirements(gpus=3)) is Refusal.TOO_FEW_GPUS
    assert why_not_now(several, FREE, Requirements(gpus=0)) is None


def test_the_roster_follows_a_gpu_that_becomes_unusable_and_comes_back() -> None:
    roster, job, worker = Roster(), a_job(), a_worker()
    roster.lines.waiting(job.class_id, job.requires)
    roster.see_job(None, job)
    for gpu, takes in ((replace(worker.gpus[0], unusable=UNHEALTHY), False), (worker.gpus[0], True)):
        roster.put_worker(replace(worker, gpus=(gpu,)))
        assert (roster.pick_worker(job) is not None) is takes
