"""`jobs metrics` and the bar of `jobs watch`."""

import argparse
import io
from typing import Any

import pytest
from rich.console import Console

from simpletuner_fleet.cli.frame.output import Output
from simpletuner_fleet.cli.jobs import job_progress, job_text
from tests.cli.conftest import FakeServer, Run

JOB: dict[str, Any] = {
    "id": "j_1",
    "name": "flux lora",
    "status": "running",
    "worker_name": "gpu-1",
    "attempt": 2,
    "resumed": "attempt 2, resumed from step 1,000 on gpu-3",
    "progress": {"step": 1240, "total": 5000, "loss": 0.04213, "lr": 1e-4, "rate": 3.2, "eta_s": 1175.0},
    "checkpoint_step": 1000,
}
POINT = {"step": 10, "at": "2026-01-01T00:00:00.000Z", "min": 0.1, "max": 0.9, "last": 0.5}
NAN = {"step": 20, "at": "2026-01-01T00:01:00.000Z", "min": None, "max": None, "last": "NaN"}


@pytest.fixture
def fleet(server: FakeServer) -> FakeServer:
    server.on("GET", "/api/jobs/j_1", JOB)
    answer = {"keys": ["loss", "lr"], "attempt": None, "total": 20, "series": {"loss": [POINT, NAN]}}
    server.on("GET", "/api/jobs/j_1/metrics", answer)
    return server


def test_a_curve_is_printed_as_csv_table_and_json(ask: Run, fleet: FakeServer) -> None:
    csv = ask("jobs", "metrics", "j_1", "--key", "loss", "-o", "csv")
    assert csv.code == 0, csv.err
    assert csv.out.splitlines() == [
        "key,step,at,min,max,last",
        "loss,10,2026-01-01T00:00:00.000Z,0.1,0.9,0.5",
        "loss,20,2026-01-01T00:01:00.000Z,,,NaN",
    ]
    assert fleet.asked("GET", "/api/jobs/j_1/metrics")[-1].query == {"key": ["loss"], "points": ["5000"]}
    table = ask("jobs", "metrics", "j_1", "--points", "7", "--attempt", "2")
    assert table.out.splitlines()[1].split("\t") == ["loss", "10", POINT["at"], "0.1", "0.9", "0.5"]
    assert fleet.asked("GET", "/api/jobs/j_1/metrics")[-1].query == {"points": ["7"], "attempt": ["2"]}
    assert ask("jobs", "metrics", "j_1", "--json").json["series"]["loss"][0] == POINT
    assert ask("jobs", "metrics", "j_1", "-o", "name").out == "loss\nlr\n"


def test_a_name_that_a_trainer_chose_is_no_formula_in_a_spreadsheet(ask: Run, fleet: FakeServer) -> None:
    lure, below = "=HYPERLINK(A1)", {**POINT, "last": -0.5}
    answer = {"keys": [lure], "series": {lure: [below]}}
    fleet.on("GET", "/api/jobs/j_1/metrics", answer)
    line = ask("jobs", "metrics", "j_1", "-o", "csv").out.splitlines()[1]
    assert line.startswith(f"'{lure},")
    assert ",-0.5" in line


def test_only_metrics_can_be_had_as_csv(ask: Run, fleet: FakeServer) -> None:
    assert ask("jobs", "list", "-o", "csv").code != 0


def drawn(job: dict[str, Any], width: int = 100) -> list[str]:
    said = io.StringIO()
    console = Console(file=said, width=width, color_system=None)
    console.print(job_progress.drawn(job, Output(argparse.Namespace())))
    return [line.rstrip() for line in said.getvalue().splitlines()]


def test_a_running_job_is_seen_at_a_glance() -> None:
    head, bar, facts = drawn(JOB)
    assert head == "j_1  flux lora  on gpu-1  attempt 2, resumed from step 1,000 on gpu-3  running"
    assert "1,240/5,000  25%" in bar
    assert facts == "loss 0.04213   lr 0.0001   3.2 steps/s   ETA 19m35s   at risk: 240 steps (safe: 1,000)"


def test_a_narrow_terminal_cuts_nothing_off() -> None:
    text = " ".join(drawn(JOB, width=40))
    assert " ".join(text.split()).endswith("at risk: 240 steps (safe: 1,000)")
    assert "running" in text


def test_what_is_not_known_is_left_out() -> None:
    assert drawn({"id": "j_1", "status": "queued"}) == ["j_1  queued"]
    slow = {"step": 3, "loss": "NaN", "rate": 0.25}
    assert drawn({"id": "j_1", "status": "running", "checkpoint_step": None, "progress": slow})[1:] == [
        "loss NaN   4 s/step   at risk: 3 steps, none stored yet"
    ]
    done = {**JOB, "status": "completed", "checkpoint_step": 5000}
    assert "at risk" not in drawn(done)[2]
    assert "ETA" not in drawn(done)[2]


def test_words_from_elsewhere_cannot_steer_the_terminal() -> None:
    evil = {**JOB, "name": "x\x1b[2J", "error": "\x1b]0;t\x07", "progress": {"step": 1, "loss": "\x1b[1m"}}
    assert not any("\x1b" in line for line in drawn(evil))


def test_the_list_shows_large_steps_in_full_and_a_loss_that_is_not_a_number() -> None:
    job = {"progress": {"step": 1_240_000, "total": 5_000_000, "loss": "NaN"}}
    assert job_text.progress(job) == "1,240,000/5,000,000 25% loss NaN"
