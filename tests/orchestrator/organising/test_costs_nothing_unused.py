"""What teams, quotas, fair share, approvals and prices cost a job in the database: nothing where nobody uses them.

Statements are counted, not seconds, so that the figure is the same on every machine. What decides is in memory (ADR 11); a
feature that would ask the database about every job, used or not, changes the count.
"""

import re
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from devtools.fuzz.in_process_server import Headers, InProcessServer
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.store.sqlite import SqliteStore

NAMED = re.compile(r"\b(?:FROM|JOIN|INTO|UPDATE) ([a-z_]+)")
OF_ONE_LIFE = {
    "INSERT jobs": 1,
    "INSERT job_bundles": 1,
    "INSERT attempts": 1,
    "INSERT audit": 4,
    "INSERT tallies": 4,
    "UPDATE jobs": 5,
    "UPDATE attempts": 3,
    "UPDATE workers": 1,
    "UPDATE counters": 1,
}
"""Submitted with its offer, accepted, started, completed: four transactions, and nothing is looked up.

Each change of a job's state is named twice, with the trigger that checks it; that it has started changes none."""
TRANSACTIONS = 4
QUOTAS = ("running_jobs", "gpu_hours_day", "money_month", "jobs_per_hour")


class Counted:
    """Every statement that any connection to SQLite runs, while somebody looks."""

    def __init__(self) -> None:
        self.looking = False
        self.statements: list[str] = []

    def note(self, statement: str) -> None:
        if self.looking:
            self.statements.append(statement)

    @property
    def by_table(self) -> Counter[str]:
        return Counter(f"{one.split()[0]} {name}" for one in self.statements for name in NAMED.findall(one))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    seen, connect = Counted(), sqlite3.connect

    def watched(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(seen.note)
        return connection

    monkeypatch.setattr(sqlite3, "connect", watched)
    return seen


async def life(server: InProcessServer, counted: Counted, by: Headers) -> None:
    """Counts all that a job costs from its submission to its end."""
    worker = server.workers["gpu0"]
    counted.statements.clear()
    counted.looking = True
    job = await server.submit(by, "gpu0")
    offer = await worker.offer_of(job)
    await worker.accept(offer)
    await worker.report(offer, "running", progress={"step": 1, "total": 2})
    await worker.report(offer, "completed", exit_code=0)
    counted.looking = False
    assert (await server.good("GET", f"/api/jobs/{job}"))["status"] == "completed"


async def use_everything(server: InProcessServer) -> None:
    await server.good("POST", "/api/teams", {"name": "lab", "weight": 3})
    await server.good("PUT", "/api/teams/lab/members/ann", {"role": "member"})
    for kind in QUOTAS:
        quota = {"kind": kind, "scope": "all", "ceiling": 1_000_000_000, "action": "refuse"}
        await server.good("POST", "/api/quotas", quota)
    await server.good(
        "POST", "/api/approvals/rules", {"name": "others", "trainer": "simpletuner", "count": 1}
    )
    await server.good("POST", "/api/queue/concurrency", {"enable_fair_share": True})
    await server.good("POST", "/api/prices", {"price_micros": 1_000_000})


async def test_the_life_of_a_job_costs_so_many_statements_whether_others_use_teams_and_quotas_or_not(
    tmp_path: Path, counted: Counted
) -> None:
    server = await InProcessServer(
        tmp_path / "server", 1, Policy(), SqliteStore(tmp_path / "fleet.db")
    ).open()
    try:
        await server.user("ann", "member")
        await server.worker("gpu0")
        await life(
            server, counted, server.admin
        )  # the first of its kind also adds the class of its requirements
        await life(server, counted, server.admin)
        assert counted.by_table == OF_ONE_LIFE
        assert len(counted.statements) == sum(OF_ONE_LIFE.values()) + 2 * TRANSACTIONS
        await use_everything(server)
        ann = await server.log_in("ann")
        await life(server, counted, ann)
        await life(server, counted, ann)
        assert counted.by_table == OF_ONE_LIFE, (
            "nor do they cost whoever they concern a question to the database"
        )
    finally:
        await server.close()
