"""`simpletuner status` with more jobs than it reads."""

from typing import Any

import pytest

from tests.cli.conftest import FakeServer, Run, Seen

RUNNING: dict[str, Any] = {"id": "j_1", "status": "running", "config_name": "cats"}
QUEUED: dict[str, Any] = {"id": "j_2", "status": "queued", "config_name": "cats"}


@pytest.fixture
def large(server: FakeServer) -> FakeServer:
    def jobs(seen: Seen) -> dict[str, Any]:
        limit, runs = int(seen.query["limit"][0]), "running" in seen.query["status"]
        return {
            "jobs": [RUNNING if runs else QUEUED] * limit,
            "next": "more",
            "total": 1_200 if runs else 18_000,
        }

    server.on("GET", "/health/ready", {"status": "ready"})
    server.on("GET", "/api/jobs", jobs)
    return server


def test_all_running_and_waiting_jobs_are_counted(ask: Run, large: FakeServer) -> None:
    shown = ask("status").out
    assert "Running  1200\n" in shown
    assert "and 1190 more" in shown
    assert "Queue    18,000 waiting" in shown
    assert ask("status", "--json").json["total"] == {"running": 1_200, "waiting": 18_000}


def test_an_older_server_that_counts_none_says_what_was_read(ask: Run, server: FakeServer) -> None:
    server.on("GET", "/health/ready", {"status": "ready"})
    server.on(
        "GET", "/api/jobs", lambda seen: {"jobs": [QUEUED] * int(seen.query["limit"][0]), "next": "more"}
    )
    shown = ask("status").out
    assert "Queue    200 or more waiting" in shown
    assert "Running  100\n" in shown


def test_reasons_that_were_counted_of_some_jobs_alone_are_not_shown_as_those_of_all(
    ask: Run, large: FakeServer
) -> None:
    shown = ask("status").out
    assert "    200  queued\n  and 17800 more\n" in shown
