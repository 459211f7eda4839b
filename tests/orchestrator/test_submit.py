"""Trying an ended job again, with what the store knows of it."""

from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.job import Hold, Job, JobState
from simpletuner_fleet.core.jobs.submitting.submit_request import SubmitRequest, Submitter
from simpletuner_fleet.core.placement.ordering import place_of
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.orchestrator import submit
from simpletuner_fleet.sim.people import ADMIN
from simpletuner_fleet.sim.world import drive
from tests.sim.transaction_kit import Bench

MEMBER = Submitter(actor=Actor("u_1", "Bob"))


def fleet_of(bench: Bench) -> Fleet:
    assert bench.orchestrator.fleet is not None
    return bench.orchestrator.fleet


def try_again(bench: Bench, job_id: str, by: Submitter) -> Job:
    job: Job = bench.do(lambda: drive(submit.retry(fleet_of(bench), job_id, by)))
    return job


def test_a_job_cancelled_before_its_approval_needs_one_even_where_new_jobs_need_none() -> None:
    bench = Bench(Policy(require_approval=True))
    request = SubmitRequest(config={"run_s": 10}, gpus=1)
    job = bench.do(lambda: drive(submit.submit(fleet_of(bench), MEMBER, request, local_enabled=False))).job
    assert job.hold is Hold.APPROVAL
    bench.do(lambda: drive(submit.cancel(fleet_of(bench), job.id, MEMBER.actor)))
    bench.orchestrator.policy = Policy()
    bench.crash()
    held = try_again(bench, job.id, MEMBER)
    assert (held.state, held.hold, held.owner) == (JobState.BLOCKED, Hold.APPROVAL, "u_1")
    approver = Submitter(actor=ADMIN, may_approve=True)
    assert try_again(bench, job.id, approver).state is JobState.QUEUED


def test_a_job_cancelled_in_the_queue_is_tried_again_by_anybody() -> None:
    bench = Bench()
    job_id = bench.submit()
    bench.do(lambda: drive(submit.cancel(fleet_of(bench), job_id, ADMIN)))
    assert try_again(bench, job_id, MEMBER).state is JobState.QUEUED


def test_after_the_clock_was_set_back_newer_jobs_do_not_overtake() -> None:
    bench = Bench()
    first = bench.submit()
    bench.crash()
    bench.world.now -= 3600
    second, third = bench.submit(), bench.submit()
    jobs = [bench.job(job_id) for job_id in (third, second, first)]
    assert [job.id for job in sorted(jobs, key=place_of)] == [first, second, third]
