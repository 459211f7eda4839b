"""`jobs events`, the notes beside `jobs get`, and the watchdog's word at a submission."""

from typing import Any

import pytest

from tests.cli.conftest import FakeServer, Run

AT = "2026-01-01T00:00:0{}.000Z"
JOB: dict[str, Any] = {"id": "j_1", "name": "flux", "status": "failed", "attempt": 1, "max_retries": 3}
TOLD: dict[str, Any] = {
    "events": [
        {"id": 1, "at": AT.format(1), "event_type": "job.submitted", "actor": "anna", "details": {"gpus": 1}},
        {
            "id": 2,
            "at": AT.format(3),
            "event_type": "job.failed",
            "actor": "orchestrator",
            "details": {"why": "watchdog: the loss was NaN at step 60", "attempt": 1},
        },
    ],
    "notes": [
        {
            "attempt": 1,
            "at": AT.format(2),
            "kind": "watchdog_nan",
            "text": "the loss was NaN at step 60; the job fails",
            "data": {"step": 60},
        }
    ],
}


@pytest.fixture
def fleet(server: FakeServer) -> FakeServer:
    server.on("GET", "/api/jobs/j_1", JOB)
    server.on("GET", "/api/jobs/j_1/events", TOLD)
    server.on("POST", "/api/queue/submit", {"job_id": "j_2", "status": "queued"})
    return server


def test_events_and_notes_stand_in_the_order_of_their_time(ask: Run, fleet: FakeServer) -> None:
    shown = ask("jobs", "events", "j_1")
    assert shown.code == 0, shown.err
    rows = [line.split("\t")[1:] for line in shown.out.splitlines()[-3:]]
    assert rows == [
        ["job.submitted", "anna", "gpus 1"],
        ["watchdog_nan", "attempt 1", "the loss was NaN at step 60; the job fails"],
        ["job.failed", "orchestrator", "watchdog: the loss was NaN at step 60"],
    ]
    assert ask("jobs", "events", "j_1", "--json").json["notes"] == TOLD["notes"]


def test_whoever_looks_at_a_job_sees_its_notes(ask: Run, fleet: FakeServer) -> None:
    shown = ask("jobs", "get", "j_1")
    assert "attempt 1: the loss was NaN at step 60; the job fails" in shown.err
    assert ask("jobs", "get", "j_1", "--json").json["id"] == "j_1"


def test_the_watchdog_is_told_at_submission_with_numbers_as_numbers(ask: Run, fleet: FakeServer) -> None:
    options = ("--watchdog", "nan=restart-from-last-good", "--watchdog", "stall=fail,stall_s=600")
    assert ask("jobs", "submit", "c", *options).code == 0
    sent = fleet.asked("POST", "/api/queue/submit")[-1].body
    assert sent["watchdog"] == {"nan": "restart-from-last-good", "stall": "fail", "stall_s": 600}
