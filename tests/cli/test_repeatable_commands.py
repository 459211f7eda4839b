"""Who repeats a command that failed does nothing twice, and what was done is told though nobody answers afterwards."""

from typing import Any

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.core.configs.datasets import PREFIX
from tests.cli.conftest import Answer, CutOff, FakeServer, Run, Seen, problem

JOB = {"id": "j_1", "status": "failed"}
RULE = {"id": "p_1", "price_micros": 85_000, "label": "", "value": "", "gpu": "", "worker_type": None}
FORBIDDEN = problem(403, "forbidden", "This needs the permission data.read.", permission="data.read")


def cut_off(seen: Seen) -> Any:
    raise CutOff


def test_a_retried_job_is_told_of_though_the_server_restarts_just_then(ask: Run, server: FakeServer) -> None:
    def retried(seen: Seen) -> Any:
        server.on("GET", "/api/jobs/j_1", problem(503, "store_unavailable", "The store is away."))
        return {"id": "j_2", "status": "queued"}

    server.on("GET", "/api/jobs/j_1", JOB)
    server.on("POST", "/api/jobs/j_1/retry", retried)
    done = ask("jobs", "retry", "j_1", "-o", "name")
    assert (done.code, done.out) == (0, "j_2\n"), done.err


def test_a_price_is_added_only_where_its_currency_can_be_told(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/prices", cut_off)
    server.on("POST", "/api/prices", Answer(201, RULE))
    assert ask("prices", "add", "2.50").code == ExitCode.UNREACHABLE
    assert server.asked("POST", "/api/prices") == []


def test_deleting_jobs_breaks_off_where_no_server_answers(ask: Run, server: FakeServer) -> None:
    for name in ("j_1", "j_2", "j_3"):
        server.on("GET", f"/api/jobs/{name}", {"id": name, "status": "failed"})
        server.on("DELETE", f"/api/jobs/{name}", cut_off)
    server.on("DELETE", "/api/jobs/j_1", {"id": "j_1", "deleted_at": "2026-11-18T12:00:00Z"})
    result = ask("jobs", "delete", "j_1", "j_2", "j_3", "--json")
    assert result.code == ExitCode.UNREACHABLE
    assert "refused:" not in result.err
    assert [(row["id"], row["deleted"]) for row in result.json["jobs"]] == [("j_1", True), ("j_2", False)]
    assert server.asked("GET", "/api/jobs/j_3") == []


def test_a_job_that_is_not_deleted_is_told_with_the_reason(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/api/jobs/j_1", JOB)
    running = "The job is running: only an ended job can be deleted."
    server.on("DELETE", "/api/jobs/j_1", problem(409, "wrong_job_state", running))
    result = ask("jobs", "delete", "j_1", "--json")
    assert running in result.err
    assert running in result.json["jobs"][0]["detail"]


def test_a_whole_id_needs_no_right_to_list_datasets(ask: Run, server: FakeServer) -> None:
    dataset_id = PREFIX + "a" * 64
    server.on("GET", "/api/data", FORBIDDEN)
    server.on("POST", "/api/queue/submit", {"job_id": "j_1", "status": "queued"})
    assert ask("jobs", "submit", "cats", "--data", f"pets={dataset_id}").code == 0
    assert server.seen[-1].body["datasets"] == {"pets": dataset_id}
    refused = ask("jobs", "submit", "cats", "--data", "pets=pets")
    assert refused.code == ExitCode.AUTH
    assert "data.read" in refused.err


@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize("words", ["teams remove vision {}", "configs delete {}", "jobs delete {}"])
def test_no_name_leads_to_something_else(ask: Run, server: FakeServer, words: str, name: str) -> None:
    """A path with dots for a name would be shortened on its way: to delete a member, to delete the team."""
    for path in ("/api/teams/vision", "/api/teams/vision/members", "/api/configs", "/api", "/api/jobs"):
        server.on("DELETE", path, {"id": "t_1", "deleted_at": ""})
    result = ask(*words.format(name).split())
    assert result.code != 0
    assert [seen for seen in server.seen if seen.method == "DELETE"] == []
