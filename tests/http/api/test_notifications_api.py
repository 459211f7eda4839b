"""Endpoints over HTTP: one's own, never another's, with an audit entry for each act and no secret in any of them."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simpletuner_fleet.store.sealing import SealedVault
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.http.api_kit import Running, orchestrator

SECRET_URL = "https://hooks.slack.com/services/T000/B000/verysecretpart1234"
BODY = {"name": "chat", "channel": "slack", "address": SECRET_URL, "events": ["job.failed"]}
WRONG: list[dict[str, Any]] = [
    {"events": ["job.exploded"]},
    {"events": []},
    {"address": "ftp://example.org"},
    {"channel": "pigeon"},
    {"quiet": "25:00-07:00"},
    {"digest": "sometimes"},
    {"zone": "Mars/Olympus"},
    {"name": ""},
    {"name": "x" * 65},
    {"language": "tlh"},
]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with orchestrator(vault=SealedVault.at(tmp_path / "key")) as made:
        yield made


async def test_another_persons_endpoint_is_as_unknown_as_one_that_is_not_there(running: Running) -> None:
    made = await running.post("/api/notifications", BODY)
    stranger = await running.token("notifications.own", name="stranger")
    path = f"/api/notifications/{made['endpoint']['id']}"
    calls: list[tuple[str, str, Any]] = [
        ("GET", "", None),
        ("PATCH", "", {"name": "mine now"}),
        ("DELETE", "", None),
        ("GET", "/history", None),
        ("POST", "/pause", None),
        ("POST", "/resume", None),
        ("POST", "/replay", {"seq": 1}),
        ("POST", "/secret", {}),
    ]
    async with running.as_user(stranger) as http:
        for method, rest, body in calls:
            theirs = await http.request(method, path + rest, json=body)
            nobodys = await http.request(method, f"/api/notifications/n_nothing{rest}", json=body)
            assert (theirs.status_code, nobodys.status_code) == (404, 404), rest
            assert theirs.json()["code"] == nobodys.json()["code"]
        assert (await http.get("/api/notifications")).json() == {"endpoints": []}
    assert (await running.get(path))["name"] == "chat"


async def test_what_is_not_ones_own_needs_its_permission(running: Running) -> None:
    async with running.as_user(await running.token("notifications.own", name="plain")) as http:
        for more in ({"scope": "all"}, {"events": ["worker.lost"]}):
            assert (await http.post("/api/notifications", json={**BODY, **more})).status_code == 403
        webhook = {**BODY, "channel": "webhook", "events": ["audit"]}
        assert (await http.post("/api/notifications", json=webhook)).status_code == 403
        events = (await http.get("/api/notifications/events")).json()["events"]
        assert "worker.lost" not in {one["event"] for one in events}
    async with running.as_user(await running.token("jobs.read", name="other")) as http:
        assert (await http.get("/api/notifications")).status_code == 403


@pytest.mark.parametrize("wrong", WRONG, ids=str)
async def test_nonsense_is_refused_by_name(running: Running, wrong: dict[str, Any]) -> None:
    answer = await running.http.post("/api/notifications", json={**BODY, **wrong})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["path"].startswith("$.")


async def test_every_act_is_in_the_audit_log_and_no_secret_is(running: Running) -> None:
    made = await running.post("/api/notifications", {**BODY, "channel": "webhook"})
    path = f"/api/notifications/{made['endpoint']['id']}"
    await running.http.patch(path, json={"name": "renamed", "events": ["job.completed"]})
    await running.post(f"{path}/pause")
    await running.post(f"{path}/resume")
    await running.post(f"{path}/replay", {"since": "2026-01-01T00:00:00Z"})
    rotated = await running.post(f"{path}/secret", {"overlap_s": 60})
    shown = json.dumps([await running.get("/api/notifications"), await running.get(path)])
    await running.http.delete(path)
    entries = (await running.get("/api/audit", limit=100))["entries"]
    acts = [one["event_type"] for one in entries if one["event_type"].startswith("notification.")]
    assert sorted(acts) == [
        f"notification.{act}"
        for act in ("added", "changed", "deleted", "key_rotated", "paused", "replayed", "resumed")
    ]
    for secret in ("verysecretpart", made["secret"], rotated["secret"]):
        assert secret not in json.dumps(entries)
        assert secret not in shown


async def test_what_lies_in_the_store_is_sealed(running: Running) -> None:
    made = await running.post("/api/notifications", {**BODY, "channel": "webhook"})
    [endpoint] = await running.fleet.read(lambda view: view.endpoints())
    assert "verysecretpart" not in repr(endpoint)
    assert made["secret"] not in repr(endpoint)


async def test_too_large_a_body_and_too_many_endpoints_are_refused(running: Running) -> None:
    answer: httpx2.Response = await running.http.post(
        "/api/notifications", json={**BODY, "name": "x" * 300_000}
    )
    assert answer.status_code == 413
    for _ in range(20):
        await running.post("/api/notifications", BODY)
    assert (await running.http.post("/api/notifications", json=BODY)).status_code == 409


async def test_a_server_without_mail_takes_no_mail_address(running: Running) -> None:
    body = {**BODY, "channel": "email", "address": "anna@example.org"}
    assert (await running.http.post("/api/notifications", json=body)).status_code == 409


async def test_what_is_changed_at_once_is_all_changed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "fleet.db")
    async with orchestrator(store, vault=SealedVault.at(tmp_path / "key")) as running:
        made = await running.post("/api/notifications", BODY)
        path = f"/api/notifications/{made['endpoint']['id']}"
        changes: list[dict[str, Any]] = [
            {"events": ["job.completed"]},
            {"quiet": "22:00-07:00"},
            {"language": "ja"},
            {"zone": "Europe/Berlin"},
        ]
        answers = await asyncio.gather(*(running.http.patch(path, json=change) for change in changes))
        assert [answer.status_code for answer in answers] == [200] * len(changes)
        stored = await running.get(path)
        assert {name: stored[name] for change in changes for name in change} == {
            name: value for change in changes for name, value in change.items()
        }
    await store.close()
