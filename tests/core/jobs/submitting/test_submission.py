from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.configs.bundle import Bundle, Resources
from simpletuner_fleet.core.errors import Forbidden, Invalid, WrongJobState
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.job import TERMINAL, Hold, Job, JobState, Requirements, Target
from simpletuner_fleet.core.jobs.submitting.submission import (
    Facts,
    check_labels,
    decide_submission,
    new_job,
    requirements,
    retried,
)
from simpletuner_fleet.core.jobs.submitting.submit_request import (
    SubmitRequest,
    Submitter,
    inline_config,
    permitted,
    read_priority,
)
from simpletuner_fleet.core.placement.ordering import class_id, rank
from simpletuner_fleet.core.policy import Policy
from tests.core.builders import NOW, POLICY, a_job


def submitted(bundle: Bundle | None = None, hold: Hold = Hold.NONE, **asked: Any) -> Job:
    return new_job(
        msgspec.convert(asked, SubmitRequest),
        bundle or Bundle(),
        POLICY,
        job_id="j_1",
        seq=7,
        config_name="c",
        config_version=3,
        owner="u_1",
        hold=hold,
        now=NOW,
    )


def test_a_bare_request_gets_the_documented_defaults() -> None:
    job = submitted()
    assert job == Job(
        id="j_1",
        seq=7,
        config_name="c",
        config_version=3,
        requires=Requirements(target=Target.AUTO, gpus=1, trainer="simpletuner", owner="u_1"),
        class_id=class_id(job.requires),
        owner="u_1",
        state=JobState.QUEUED,
        rank=NOW,
        priority=0,
        max_retries=3,
        created_at=NOW,
        retry_on_failure=False,
        on_partition="pause",
    )


def test_everything_asked_for_reaches_the_job() -> None:
    job = submitted(
        target="worker",
        worker_labels={"zone": "eu*", "team": "nlp"},
        gpus=2,
        min_vram_gb=24,
        accelerator="CUDA",
        priority="high",
        max_retries=0,
        retry_on_failure=True,
        time_limit_s=60,
        on_partition="stop",
        depends_on=["j_9", "j_8", "j_9"],
        name="My run",
    )
    assert job.requires == Requirements(
        target=Target.WORKER,
        gpus=2,
        min_vram_gb=24.0,
        accelerator="cuda",
        labels=(("team", "nlp"), ("zone", "eu*")),
        owner="u_1",
    )
    assert (job.priority, job.rank) == (10, NOW - 10 * POLICY.priority_point_s)
    assert (job.max_retries, job.retry_on_failure, job.time_limit_s) == (0, True, 60)
    assert (job.on_partition, job.depends_on, job.name) == ("stop", ("j_9", "j_8"), "My run")


@pytest.mark.parametrize("hold", [Hold.APPROVAL, Hold.DEPENDENCY])
def test_a_job_that_waits_for_somebody_is_blocked(hold: Hold) -> None:
    job = submitted(hold=hold)
    assert (job.state, job.hold) == (JobState.BLOCKED, hold)


def test_the_policy_says_how_many_retries_there_are_unless_the_request_does() -> None:
    strict = Policy(max_retries=1)
    request = SubmitRequest(max_retries=None)
    job = new_job(
        request,
        Bundle(),
        strict,
        job_id="j",
        seq=1,
        config_name="c",
        config_version=1,
        owner="",
        hold=Hold.NONE,
        now=NOW,
    )
    assert job.max_retries == 1


def test_the_request_overrides_the_config_and_the_config_the_number_of_processes() -> None:
    config = Bundle(
        trainer="x",
        settings={"--num_processes": 8},
        resources=Resources(gpus=4, min_vram_gb=24, accelerator="ROCm"),
    )
    of_config = requirements(SubmitRequest(), config, "u")
    assert (of_config.gpus, of_config.min_vram_gb, of_config.accelerator) == (4, 24.0, "rocm")
    of_request = requirements(SubmitRequest(gpus=0, min_vram_gb=0, accelerator="cuda"), config, "u")
    assert (of_request.gpus, of_request.min_vram_gb, of_request.accelerator) == (0, 0.0, "cuda")
    assert of_config.trainer == of_request.trainer == "x"
    assert requirements(SubmitRequest(), Bundle(settings={"--num_processes": 8}), "u").gpus == 8


def test_labels_in_another_order_make_the_same_class() -> None:
    one = submitted(worker_labels={"a": "1", "b": "2"})
    other = submitted(worker_labels={"b": "2", "a": "1"})
    assert one.class_id == other.class_id


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ({"gpus": -1}, "$.gpus"),
        ({"gpus": 1025}, "$.gpus"),
        ({"min_vram_gb": -0.5}, "$.min_vram_gb"),
        ({"priority": 1001}, "$.priority"),
        ({"priority": -1001}, "$.priority"),
        ({"priority": "asap"}, "$.priority"),
        ({"max_retries": -1}, "$.max_retries"),
        ({"max_retries": 101}, "$.max_retries"),
        ({"time_limit_s": 0}, "$.time_limit_s"),
        ({"time_limit_s": -1}, "$.time_limit_s"),
        ({"depends_on": [f"j_{n}" for n in range(101)]}, "$.depends_on"),
        ({"name": ""}, "$.name"),
        ({"name": "a" * 201}, "$.name"),
        ({"name": "a\x1b[31m"}, "$.name"),
        ({"worker_labels": {"": "x"}}, "$.worker_labels"),
        ({"worker_labels": {" a": "x"}}, "$.worker_labels"),
        ({"worker_labels": {"a\n": "x"}}, "$.worker_labels"),
        ({"worker_labels": {"a" * 64: "x"}}, "$.worker_labels"),
        ({"worker_labels": {"a": "x" * 256}}, "$.worker_labels.a"),
        ({"worker_labels": {"a": "x\0"}}, "$.worker_labels.a"),
        ({"worker_labels": {f"k{n}": "" for n in range(65)}}, "$.worker_labels"),
    ],
)
def test_a_refusal_names_its_path(asked: dict[str, Any], path: str) -> None:
    with pytest.raises(Invalid) as caught:
        submitted(**asked)
    assert caught.value.params["errors"] == [{"path": path, "detail": caught.value.detail}]


@pytest.mark.parametrize(
    ("asked", "priority"),
    [(0, 0), (-1000, -1000), (1000, 1000), ("low", -10), ("NORMAL", 0), ("High", 10), ("urgent", 100)],
)
def test_a_priority_is_a_number_or_a_word(asked: int | str, priority: int) -> None:
    assert read_priority(asked) == priority


def test_labels_at_their_limits_are_fine() -> None:
    labels = {**{f"k{n}": "v" for n in range(63)}, "a" * 63: "x" * 255}
    assert check_labels(labels, "$.labels") == labels


def test_an_unknown_field_of_a_request_is_ignored_and_a_wrong_type_is_not() -> None:
    assert msgspec.json.decode(b'{"later": 1}', type=SubmitRequest) == SubmitRequest()
    for wrong in (
        b'{"gpus": "2"}',
        b'{"target": "moon"}',
        b'{"on_partition": "panic"}',
        b'{"priority": 1.5}',
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(wrong, type=SubmitRequest)


MEMBER = Submitter(actor=Actor("u_1", "Bob"))
APPROVER = Submitter(
    actor=Actor("u_2", "Ada"), may_approve=True, may_raise_priority=True, may_run_locally=True
)
STRICT = Policy(require_approval=True)


def decided(by: Submitter = MEMBER, facts: Facts | None = None, policy: Policy = POLICY, **asked: Any) -> Job:
    request = permitted(msgspec.convert(asked, SubmitRequest), by, local_enabled=True)
    config = inline_config(request, {"settings": {}, "secrets": {"HF_TOKEN": "hf"}})
    known = facts or Facts(secrets=frozenset({"hf"}))
    return decide_submission(request, by, config, known, policy, job_id="j_1", seq=7, now=NOW)


def again(
    by: Submitter = MEMBER,
    bundle: Bundle | None = None,
    facts: Facts | None = None,
    policy: Policy = POLICY,
    **old: Any,
) -> Job:
    job = a_job("j_old", **{"state": JobState.FAILED, "owner": "u_1", **old})
    known = facts or Facts()
    return retried(job, bundle or Bundle(), by, known, policy, job_id="j_new", seq=9, now=NOW + 60)


@pytest.mark.parametrize("priority", [1, 1000, "high", "Urgent"])
def test_who_may_not_raise_a_priority_later_may_not_submit_with_one(priority: int | str) -> None:
    with pytest.raises(Forbidden) as caught:
        decided(priority=priority)
    assert caught.value.params["permission"] == "queue.priority"
    assert decided(APPROVER, priority=priority).priority == read_priority(priority)


@pytest.mark.parametrize("priority", [0, -1, "normal", "low"])
def test_everybody_may_stand_back_for_others(priority: int | str) -> None:
    assert decided(priority=priority).priority == read_priority(priority)


def test_the_orchestrators_own_machine_is_for_those_who_may_use_it() -> None:
    with pytest.raises(Forbidden) as caught:
        decided(target="local")
    assert caught.value.params["permission"] == "queue.submit.local"
    assert decided(target="auto").requires.target is Target.WORKER
    assert decided(APPROVER, target="local").requires.target is Target.LOCAL
    with pytest.raises(Invalid):
        permitted(SubmitRequest(target=Target.LOCAL), APPROVER, local_enabled=False)


def test_a_job_waits_for_approval_first_then_for_those_it_depends_on() -> None:
    running = Facts(secrets=frozenset({"hf"}), dependencies={"j_0": a_job("j_0", state=JobState.RUNNING)})
    done = Facts(secrets=frozenset({"hf"}), dependencies={"j_0": a_job("j_0", state=JobState.COMPLETED)})
    assert decided(facts=running, depends_on=["j_0"]).hold is Hold.DEPENDENCY
    assert decided(facts=done, depends_on=["j_0"]).hold is Hold.NONE
    assert decided(policy=STRICT, facts=running, depends_on=["j_0"]).hold is Hold.APPROVAL
    assert decided(APPROVER, policy=STRICT).hold is Hold.NONE


@pytest.mark.parametrize("state", [None, JobState.FAILED, JobState.CANCELLED])
def test_nobody_waits_for_a_job_that_cannot_complete(state: JobState | None) -> None:
    facts = Facts(dependencies={"j_0": a_job("j_0", state=state)} if state else {})
    with pytest.raises(Invalid) as caught:
        again(facts=facts, depends_on=("j_0",))
    assert caught.value.params["errors"][0]["path"] == "$.depends_on"
    with pytest.raises(Invalid) as caught:
        decided(facts=replace(facts, secrets=frozenset({"hf"})), depends_on=["j_0"])
    assert caught.value.params["errors"][0]["path"] == "$.depends_on"


def test_a_secret_that_is_not_stored_is_named() -> None:
    with pytest.raises(Invalid, match="'hf' as HF_TOKEN"):
        decided(facts=Facts())
    with pytest.raises(Invalid, match="'hf' as HF_TOKEN"):
        again(bundle=Bundle(secrets={"HF_TOKEN": "hf"}))


def test_a_retry_is_a_new_job_with_the_same_terms_and_nothing_of_what_happened() -> None:
    terms: dict[str, Any] = {
        "config_name": "cats",
        "config_version": 4,
        "priority": 10,
        "max_retries": 1,
        "retry_on_failure": True,
        "time_limit_s": 60.0,
        "on_time_limit": "requeue",
        "on_partition": "stop",
        "name": "My run",
    }
    happened: dict[str, Any] = {
        "epoch": 5,
        "attempts": 2,
        "losses": 1,
        "failures": 1,
        "lost_workers": ("w_1",),
        "error": "no",
        "reason": "trainer_failed",
        "started_at": NOW,
        "finished_at": NOW,
        "version": 8,
    }
    job = again(APPROVER, **terms, **happened)
    assert job == Job(
        id="j_new",
        seq=9,
        requires=job.requires,
        class_id=class_id(job.requires),
        owner="u_1",
        state=JobState.QUEUED,
        rank=rank(NOW + 60, 10, POLICY),
        created_at=NOW + 60,
        retry_of="j_old",
        **terms,
    )


@pytest.mark.parametrize("state", [state for state in JobState if state not in TERMINAL])
def test_only_an_ended_job_is_tried_again(state: JobState) -> None:
    with pytest.raises(WrongJobState):
        again(state=state)


@pytest.mark.parametrize("old", [{"reason": "rejected"}, {"facts": Facts(never_approved=True)}])
def test_an_approval_refused_or_never_given_is_needed_again(old: dict[str, Any]) -> None:
    held = again(state=JobState.CANCELLED, **old)
    assert (held.state, held.hold) == (JobState.BLOCKED, Hold.APPROVAL)
    free = again(APPROVER, state=JobState.CANCELLED, **old)
    assert (free.state, free.hold) == (JobState.QUEUED, Hold.NONE)


def test_where_jobs_need_an_approval_their_retries_do() -> None:
    assert again(policy=STRICT).hold is Hold.APPROVAL
    assert again(APPROVER, policy=STRICT).hold is Hold.NONE
    assert again().hold is Hold.NONE


def test_a_retry_waits_for_what_its_predecessor_waited_for() -> None:
    running = Facts(dependencies={"j_0": a_job("j_0", state=JobState.RUNNING)})
    job = again(facts=running, state=JobState.CANCELLED, depends_on=("j_0",))
    assert (job.state, job.hold, job.depends_on) == (JobState.BLOCKED, Hold.DEPENDENCY, ("j_0",))


def test_a_retry_of_what_has_run_needs_no_job_that_was_deleted_since() -> None:
    completed = Facts(dependencies={"j_0": a_job("j_0", state=JobState.COMPLETED)})
    job = again(facts=completed, state=JobState.FAILED, depends_on=("j_0", "j_deleted"), attempts=1)
    assert (job.state, job.hold, job.depends_on) == (JobState.QUEUED, Hold.NONE, ("j_0",))
    with pytest.raises(Invalid, match="no job j_deleted"):
        again(facts=completed, state=JobState.CANCELLED, depends_on=("j_0", "j_deleted"), attempts=0)


@pytest.mark.parametrize(("priority", "left"), [(50, 0), (0, 0), (-10, -10)])
def test_a_raised_priority_is_not_had_by_trying_again(priority: int, left: int) -> None:
    job = again(priority=priority)
    assert (job.priority, job.rank) == (left, rank(NOW + 60, left, POLICY))
    assert again(APPROVER, priority=priority).priority == priority


def test_a_retry_runs_on_the_orchestrators_machine_only_for_those_who_may() -> None:
    local = Requirements(target=Target.LOCAL, owner="u_1")
    with pytest.raises(Forbidden):
        again(requires=local)
    assert again(APPROVER, requires=local).requires == local
    anywhere = again(requires=Requirements(target=Target.AUTO, owner="u_1"))
    assert anywhere.requires.target is Target.WORKER
    assert anywhere.class_id == class_id(anywhere.requires)
