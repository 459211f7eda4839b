"""Settings that cannot be read: everything else goes on, and what they may have forbidden is forbidden meanwhile."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.cli.doctor.checks_server import database
from simpletuner_fleet.cli.doctor.findings import FindingMark
from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.engine.memory.setting_documents import ALONE, BY_PREFIX, CURRENCY_SETTING
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.queries.overview import look
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.core.builders import a_job
from tests.http.api_kit import CPU_CONFIG, Running, orchestrator
from tests.ready_databases import lay_sqlite

DAMAGED = [*(f"{prefix}x_1" for prefix in BY_PREFIX), *ALONE, CURRENCY_SETTING]
CUT_OFF = '{"id":"x_1","na'


@asynccontextmanager
async def damaged(tmp_path: Path, key: str, text: str = CUT_OFF) -> AsyncIterator[Running]:
    file = lay_sqlite(tmp_path / "fleet.db")
    with sqlite3.connect(file) as connection:
        connection.execute("INSERT INTO settings (key, value) VALUES (?, ?)", (key, text))
    connection.close()
    store = SqliteStore(file)
    try:
        async with orchestrator(store=store) as running:
            yield running
    finally:
        await store.close()


async def submitted_state(running: Running) -> str:
    """Submits a job while a worker waits for one, and returns what has become of it."""
    await running.worker()
    return str((await running.submit())["status"])


@pytest.mark.parametrize("key", DAMAGED)
async def test_a_setting_that_cannot_be_read_is_named_and_everything_else_goes_on(
    tmp_path: Path, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with damaged(tmp_path, key) as running:
        made = await running.http.post("/api/teams", json={"name": "vision"})
        assert made.status_code == 201, made.text
        assert len((await running.get("/api/teams"))["teams"]) == 1
        assert key in [one.id for one in running.fleet.organisation.unreadable]
        assert f"the setting {key} cannot be read" in caplog.text
        named = [need for need in (await look(running.fleet, None)).needs if need.kind == "rows_unreadable"]
        assert (key, f"settings {key}") in named[0].named
    damage = [one.what for one in database(None, tmp_path) if one.mark is FindingMark.BAD]
    assert f"settings {key} (" in damage[0]


@pytest.mark.parametrize("key", ["quota:x_1", "price_rule:x_1", "limits"])
async def test_nothing_starts_where_nobody_knows_what_a_limit_leaves(tmp_path: Path, key: str) -> None:
    async with damaged(tmp_path, key) as running:
        await running.worker()
        job = await running.submit()
        assert job["status"] == "queued"
        assert_waits_for(job["explain"], key)


def assert_waits_for(explained: dict[str, Any], key: str) -> None:
    assert (explained["code"], explained["class"]) == ("SETTING_UNREADABLE", "admin")
    assert f"cannot be read ({key})" in explained["sentence"]


@pytest.mark.parametrize("key", ["role:x_1", "sign_in_provider:x_1", "fair_share", "team:x_1"])
async def test_jobs_start_that_the_setting_does_not_concern(tmp_path: Path, key: str) -> None:
    async with damaged(tmp_path, key) as running:
        assert await submitted_state(running) == "dispatched"


async def test_every_job_needs_an_approval_where_a_rule_of_approvals_cannot_be_read(tmp_path: Path) -> None:
    async with damaged(tmp_path, "approval_rule:x_1") as running:
        await running.worker()
        member = await running.token("queue.submit", "queue.submit.command")
        async with running.as_user(member) as http:
            answer = await http.post("/api/queue/submit", json={"config": CPU_CONFIG})
        assert answer.json()["status"] == "blocked", answer.text
        job_id = answer.json()["job_id"]
        approved = await running.http.post(f"/api/queue/{job_id}/approve")
        assert approved.status_code == 200, approved.text
        assert (await running.job(job_id))["status"] == "dispatched"


async def test_a_team_that_cannot_be_read_may_use_no_worker(tmp_path: Path) -> None:
    async with damaged(tmp_path, "team:x_1") as running:

        def add_both(transaction: Transaction) -> None:
            for seq, team in enumerate(("x_1", ""), 1):
                requires = Requirements(team=team, trainer="command", gpus=0)
                job = a_job(f"j_{seq}", seq=seq, team=team, requires=requires)
                transaction.add_job(job, b"{}")

        await running.fleet.act(add_both)
        await running.worker()
        states = [(await running.job(f"j_{seq}"))["status"] for seq in (1, 2)]
        assert states == ["queued", "dispatched"]
        assert_waits_for(await running.get("/api/jobs/j_1/explain"), "team:x_1")


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("quota:x_1", "/api/quotas/x_1"),
        ("price_rule:x_1", "/api/prices/x_1"),
        ("team:x_1", "/api/teams/x_1"),
        ("approval_rule:x_1", "/api/approvals/rules/x_1"),
    ],
)
async def test_what_cannot_be_read_can_be_deleted_and_forbids_nothing_any_more(
    tmp_path: Path, key: str, path: str
) -> None:
    async with damaged(tmp_path, key) as running:
        await running.worker()
        waiting = (await running.submit())["job_id"] if key.startswith(("quota", "price")) else None
        list_path = path.removesuffix("/x_1")
        assert (await running.get(list_path))["unreadable"] == ["x_1"]
        deleted = await running.http.delete(path)
        assert deleted.status_code == 200, deleted.text
        assert running.fleet.organisation.unreadable == ()
        assert (await running.get(list_path))["unreadable"] == []
        assert (await running.http.delete(path)).status_code == 404
        entries = (await running.get("/api/audit"))["entries"]
        assert [one["details"] for one in entries if one["target_id"] == "x_1"] == [{"unreadable": True}]
        if waiting is not None:
            assert (await running.job(waiting))["status"] == "dispatched"


@pytest.mark.parametrize(
    ("key", "method", "path", "body"),
    [
        ("role:x-1", "PUT", "/api/admin/roles/x-1", {"permissions": ["jobs.read"]}),
        (
            *("sign_in_provider:x-1", "POST", "/api/admin/sign-in/providers"),
            {
                "id": "x-1",
                "issuer": "https://id.example",
                "client_id": "fleet",
                "roles": {"everybody": "viewer"},
            },
        ),
    ],
)
async def test_a_role_or_a_provider_that_cannot_be_read_is_set_anew_under_its_name(
    tmp_path: Path, key: str, method: str, path: str, body: dict[str, Any]
) -> None:
    async with damaged(tmp_path, key) as running:
        made = await running.http.request(method, path, json=body)
        assert made.status_code in (200, 201), made.text
        assert running.fleet.organisation.unreadable == ()


async def test_limits_that_cannot_be_read_are_set_anew_only_as_a_whole(tmp_path: Path) -> None:
    concurrency = "/api/queue/concurrency"
    async with damaged(tmp_path, "limits") as running:
        await running.worker()
        waiting = (await running.submit())["job_id"]
        part = await running.http.post(concurrency, json={"user_running": 4})
        assert part.status_code == 422, part.text
        assert "name all of them" in part.json()["detail"]
        assert (await running.job(waiting))["status"] == "queued"
        whole = {"global_running": None, "user_running": 4, "team_running": None}
        assert (await running.http.post(concurrency, json=whole)).status_code == 200
        assert running.fleet.organisation.unreadable == ()
        assert (await running.job(waiting))["status"] == "dispatched"
        shown = await running.get(concurrency)
        assert (shown["global_running"], shown["user_running"]) == (None, 4)


async def test_amounts_are_in_no_currency_where_nobody_can_read_it_until_it_is_set_anew(
    tmp_path: Path,
) -> None:
    async with damaged(tmp_path, CURRENCY_SETTING) as running:
        await running.post("/api/prices", {"price_micros": 2_500_000})
        assert (await running.get("/api/prices"))["currency"] == "XXX"
        assert await submitted_state(running) == "dispatched"
        answer = await running.http.put("/api/prices/currency", json={"currency": "EUR"})
        assert answer.status_code == 200, "though amounts are counted already"
        assert (await running.get("/api/prices"))["currency"] == "EUR"
        assert running.fleet.organisation.unreadable == ()


async def test_an_empty_document_is_not_taken_for_none(tmp_path: Path) -> None:
    async with damaged(tmp_path, "limits", "") as running:
        assert await submitted_state(running) == "queued"
