from typing import Any

import msgspec
import pytest

from simpletuner_fleet.core.bundle import Bundle, Resources
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.job import Hold, Job, JobState, Requirements, Target
from simpletuner_fleet.core.ordering import class_id
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.submission import (
    SubmitRequest,
    check_labels,
    new_job,
    read_priority,
    requirements,
)
from tests.core.builders import NOW, POLICY


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
