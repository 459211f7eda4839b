from typing import Any

from simpletuner_fleet.cli.jobs import job_text

FAILURE = {"class": "gpu_out_of_memory", "evidence": "CUDA out of memory.", "advice": "Use a smaller batch."}


def shown(job: dict[str, Any], title: str) -> Any:
    return next(column.value(job) for column in job_text.DETAIL if column.title == title)


def test_a_failed_jobs_details_name_the_class_and_the_line_that_shows_it() -> None:
    job = {"status": "failed", "failure": FAILURE}
    assert shown(job, "FAILURE") == "GPU out of memory: CUDA out of memory."
    assert job_text.advice(job)[0] == "Use a smaller batch."


def test_a_job_that_has_not_failed_has_no_such_line() -> None:
    odd: list[Any] = [None, {}, "odd"]
    for failure in odd:
        job = {"status": "running", "failure": failure}
        assert shown(job, "FAILURE") is None
        assert job_text.advice(job) == ()
