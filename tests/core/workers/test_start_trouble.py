from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.placement.matching import FREE as IDLE
from simpletuner_fleet.core.placement.matching import Refusal, in_service, why_not_now
from simpletuner_fleet.core.workers.start_trouble import Blame, StartTrouble, after_start_failure, tried_again
from tests.core.builders import NOW, POLICY, a_worker


def after(*failures: tuple[str, Blame], trouble: StartTrouble | None = None) -> StartTrouble:
    for job_id, blame in failures:
        trouble = after_start_failure(trouble, job_id, blame, "No space left on device", POLICY, NOW)
    assert trouble is not None
    return trouble


def test_one_failure_closes_a_worker_for_a_moment_so_that_another_is_asked() -> None:
    trouble = after(("j_1", Blame.WORKER))
    assert not trouble.set_aside
    assert trouble.closed_until == NOW + POLICY.retry_backoff_s
    worker = a_worker(start_trouble=trouble)
    assert not in_service(worker)
    assert why_not_now(worker, IDLE, Requirements()) is Refusal.SET_ASIDE
    assert worker.pause_is_over(NOW + POLICY.retry_backoff_s)
    assert in_service(a_worker(start_trouble=tried_again(trouble)))


def test_three_in_a_row_set_it_aside_with_the_reason() -> None:
    two = after(("j_1", Blame.WORKER), ("j_2", Blame.UNCLEAR))
    assert not two.set_aside
    three = after(("j_3", Blame.WORKER), trouble=two)
    assert three.set_aside
    assert (three.closed_until, three.why) == (NOW + POLICY.set_aside_s, "No space left on device")


def test_a_worker_that_is_no_better_is_set_aside_for_longer_up_to_a_limit() -> None:
    trouble = after(*[(f"j_{number}", Blame.WORKER) for number in range(3)])
    again = after(("j_9", Blame.WORKER), trouble=tried_again(trouble))
    assert again.closed_until == NOW + 2 * POLICY.set_aside_s
    for number in range(50):
        again = after((f"j_{number}", Blame.WORKER), trouble=tried_again(again))
    assert again.closed_until == NOW + POLICY.set_aside_max_s
    assert len(again.jobs) == 3


def test_a_job_that_names_its_program_wrongly_sets_no_worker_aside() -> None:
    trouble = after(*[("j_1", Blame.UNCLEAR)] * 20)
    assert not trouble.set_aside
    assert after(("j_2", Blame.UNCLEAR), ("j_3", Blame.UNCLEAR), trouble=trouble).set_aside
