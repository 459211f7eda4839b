"""The judge itself: each kind of broken promise, made up, is found."""

from devtools.chaos.checks import journal_problems
from devtools.chaos.faults import KINDS, draw_faults
from devtools.chaos.journal import Line, ObservedRun
from simpletuner_fleet.core.jobs.fencing import Turn


def run(
    job: str, epoch: int, *active_at: float, starts: int = 1, where: str = "", gpus: str = ""
) -> ObservedRun:
    lines = [
        Line(
            event="start",
            job=job,
            epoch=epoch,
            attempt=1,
            pid=100 + at,
            at=active_at[0],
            where=f"/w{where}/attempts/a/output",
            gpus=gpus,
        )
        for at in range(starts)
    ]
    return ObservedRun(job=job, epoch=epoch, starts=lines, active_at=list(active_at))


def problems_of(*runs: ObservedRun) -> set[str]:
    observed: dict[Turn, ObservedRun] = {Turn(one.job, one.epoch): one for one in runs}
    return {promise for promise, _ in journal_problems(observed)}


def test_attempts_one_after_the_other_are_fine() -> None:
    assert problems_of(run("j", 1, 1.0, 2.0), run("j", 2, 2.1, 3.0), run("k", 3, 1.5)) == set()


def test_a_paused_attempt_that_never_works_again_is_no_overlap() -> None:
    assert problems_of(run("j", 1, 1.0, 1.2), run("j", 5, 1.3, 9.0)) == set()


def test_one_tick_of_an_old_attempt_after_a_new_one_began_is_found() -> None:
    assert problems_of(run("j", 1, 1.0, 1.2, 2.2), run("j", 2, 2.1, 3.0)) == {"S3"}


def test_a_second_start_of_one_attempt_is_found() -> None:
    assert problems_of(run("j", 1, 1.0, 2.0, starts=2)) == {"S4"}


def test_a_gpu_used_by_two_attempts_at_once_is_found() -> None:
    shared = (run("j", 1, 1.0, 2.0, where="1", gpus="0"), run("k", 2, 1.5, 3.0, where="1", gpus="0,1"))
    assert problems_of(*shared) == {"S10"}
    apart = (run("j", 1, 1.0, 2.0, where="1", gpus="0"), run("k", 2, 1.5, 3.0, where="2", gpus="0"))
    assert problems_of(*apart) == set()


def test_a_seed_draws_the_same_faults_again_and_a_long_run_draws_every_kind() -> None:
    assert draw_faults(7, 300) == draw_faults(7, 300)
    assert draw_faults(7, 300) != draw_faults(8, 300)
    assert {fault.kind for fault in draw_faults(7, 2000)} == set(KINDS)
