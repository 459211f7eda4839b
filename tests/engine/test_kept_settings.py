"""What the server keeps for itself and cannot be read stops nothing, loses nothing and lets nobody in."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path
from typing import cast

import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.cli.doctor.checks_server import database
from simpletuner_fleet.cli.doctor.findings import FindingMark
from simpletuner_fleet.core.configs.options import Options
from simpletuner_fleet.core.events import ORCHESTRATOR
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.restoring import LINKS_SINCE, RESTORED
from simpletuner_fleet.engine import kept_settings
from simpletuner_fleet.engine.kept_settings import (
    EMPTIED_UNTIL,
    FILES_LEFT,
    KEPT,
    KEPT_BY_PREFIX,
    KEY_PREFIX,
    OPTIONS_PREFIX,
    QUOTAS_TOLD,
    WAITS_READ,
    read_setting,
)
from simpletuner_fleet.orchestrator.after_restore import hold_after_restore
from simpletuner_fleet.orchestrator.notices.waits import WaitWatch
from simpletuner_fleet.orchestrator.organising.quota_watch import watch_quotas
from simpletuner_fleet.orchestrator.people import accounts
from simpletuner_fleet.orchestrator.trainer_options import keep_options, newest_options
from simpletuner_fleet.queries.overview import look
from simpletuner_fleet.storage.storage import Storage
from simpletuner_fleet.storage.sweeping.retention import empty_old_jobs_once
from simpletuner_fleet.store.sealing import SealedVault
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.http.api_kit import CPU_CONFIG, GPU_CONFIG, Running, orchestrator
from tests.ready_databases import lay_sqlite

DAMAGES: dict[str, str | bytes] = {
    "cut off": '{"id":"x_1","na',
    "empty": "",
    "of another shape": '{"version":"two"}',
    "too deep": "[" * 100_000,
    "too large a number": "1e999",
    "no number": "nan",
    "bytes": b"\xff\x00\xfe",
}
KEYS = (*KEPT, *(f"{prefix}x_1" for prefix in KEPT_BY_PREFIX))
VAULT = SealedVault(lambda: b"k" * 32, lambda: b"k" * 32)


@asynccontextmanager
async def damaged(folder: Path, key: str, damage: str | bytes) -> AsyncIterator[Running]:
    file = lay_sqlite(folder / "fleet.db")
    with sqlite3.connect(file) as connection:
        connection.execute("INSERT INTO settings (key, value) VALUES (?, ?)", (key, damage))
    connection.close()
    store = SqliteStore(file)
    try:
        async with orchestrator(store=store, vault=VAULT, policy=Policy(jobs_keep_days=30.0)) as running:
            yield running
    finally:
        await store.close()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=list(DAMAGES))
@pytest.mark.parametrize("key", KEYS)
def test_no_damage_is_taken_for_something_stored(key: str, damage: str | bytes) -> None:
    kind = KEPT.get(key) or KEPT_BY_PREFIX[key.removesuffix("x_1")]
    assert kept_settings.decoded(key, cast(str, damage), kind, "damaged") == "damaged"
    assert [one.id for one in kept_settings.unreadable_of({key: cast(str, damage)})] == [key]


@pytest.mark.parametrize(("key", "damage"), list(zip(KEYS, cycle(DAMAGES.values()), strict=False)), ids=KEYS)
async def test_each_is_named_and_the_server_goes_on(
    tmp_path: Path,
    key: str,
    damage: str | bytes,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_settings, "_named", {})
    async with damaged(tmp_path, key, damage) as running:
        fleet = running.fleet
        await hold_after_restore(fleet)
        made = await running.http.post("/api/teams", json={"name": "vision"})
        assert made.status_code == 201, made.text
        await running.worker()
        job = await running.submit()
        await running.pass_time(2 * fleet.policy.heartbeat_timeout_s)
        assert (await running.job(job["job_id"]))["status"] in ("dispatched", "queued")
        await WaitWatch(fleet).look(running.clock.at)
        await watch_quotas(fleet)
        await empty_old_jobs_once(Storage(fleet, MemoryBlobs()))
        assert await newest_options(fleet, "x_1") is None
        assert (await running.http.get("/api/secrets")).status_code == 200
        assert await fleet.read(lambda view: accounts.good_key(view, "anything", running.clock.at)) is None
        still = await fleet.read(lambda view: kept_settings.is_unreadable(view, key))
        named = {one for need in (await look(fleet, None)).needs for one in need.named}
        assert ((key, f"settings {key}") in named) == still
        assert f"the setting {key} cannot be read" in caplog.text
    damage_told = [one.what for one in database(None, tmp_path) if one.mark is FindingMark.BAD]
    assert any(f"settings {key} (" in one for one in damage_told) == still


async def test_what_is_written_anew_is_named_no_more(tmp_path: Path) -> None:
    async with damaged(tmp_path, WAITS_READ, "nan") as running:
        assert [one.id for one in await running.fleet.read(kept_settings.unreadable_now)] == [WAITS_READ]
        await WaitWatch(running.fleet).look(running.clock.at)
        assert await running.fleet.read(kept_settings.unreadable_now) == []


@pytest.mark.parametrize("damage", ["", '{"version":1}'])
async def test_a_secret_that_cannot_be_read_goes_to_no_job_and_only_an_administrator_deletes_it(
    tmp_path: Path, damage: str
) -> None:
    async with damaged(tmp_path, "secret:hub", damage) as running:
        assert await running.get("/api/secrets") == {"secrets": [], "unreadable": ["hub"]}
        config = {**CPU_CONFIG, "secrets": {"HUB": "hub"}}
        refused = await running.http.post("/api/queue/submit", json={"config": config})
        assert refused.status_code == 409
        assert "The secret 'hub' is stored, but it cannot be read." in refused.json()["detail"]
        member = await running.token("queue.submit", "secrets.read", "secrets.write")
        async with running.as_user(member) as http:
            assert (await http.get("/api/secrets")).json()["unreadable"] == []
            assert (await http.put("/api/secrets/hub", json={"value": "mine"})).status_code == 409
            assert (await http.delete("/api/secrets/hub")).status_code in (403, 404)
        assert (await running.http.put("/api/secrets/hub", json={"value": "anew"})).status_code == 409
        assert (await running.http.delete("/api/secrets/hub")).status_code == 200
        assert (await running.http.put("/api/secrets/hub", json={"value": "anew"})).status_code == 200
        assert (await running.http.post("/api/queue/submit", json={"config": config})).status_code == 200


async def test_nothing_is_placed_after_a_restore_whose_note_cannot_be_read(tmp_path: Path) -> None:
    async with damaged(tmp_path, RESTORED, "cut") as running:
        await running.worker()
        until = await hold_after_restore(running.fleet)
        assert until is not None
        assert until > running.clock.at
        assert (await running.submit())["status"] == "queued"
        assert await running.fleet.read(lambda view: view.setting(RESTORED)) is None
        events = (await running.get("/api/audit", event_type="server.restored"))["entries"]
        assert [one["details"] for one in events] == [{}]


async def test_no_link_of_before_works_where_nobody_knows_since_when_they_do_and_later_ones_do(
    tmp_path: Path,
) -> None:
    async with damaged(tmp_path, LINKS_SINCE, "cut") as running:
        fleet = running.fleet
        await hold_after_restore(fleet)
        assert await fleet.read(lambda view: read_setting(view, LINKS_SINCE, float, None)) == running.clock.at


async def test_people_are_told_of_a_quota_once_more_where_nobody_knows_whether_they_were(
    tmp_path: Path,
) -> None:
    async with damaged(tmp_path, QUOTAS_TOLD, "cut") as running:
        await running.post("/api/quotas", {"kind": "gpu_hours_day", "scope": "all", "ceiling": 1})
        worker = await running.worker(gpus=1)
        await running.submit(config=GPU_CONFIG)
        offer = await worker.take()
        running.clock.at += 2 * 3600.0
        await worker.heartbeat(offer)
        await running.pass_time(60.0)
        await watch_quotas(running.fleet)
        assert len((await running.get("/api/audit", event_type="quota.reached"))["entries"]) == 1
        await running.pass_time(60.0)
        await watch_quotas(running.fleet)
        assert len((await running.get("/api/audit", event_type="quota.reached"))["entries"]) == 1
        assert await running.fleet.read(kept_settings.unreadable_now) == []


@pytest.mark.parametrize("key", [EMPTIED_UNTIL, FILES_LEFT])
async def test_files_of_old_jobs_are_deleted_where_nobody_knows_how_far_that_had_come(
    tmp_path: Path, key: str
) -> None:
    async with damaged(tmp_path, key, "cut") as running:
        worker = await running.worker()
        job = await running.submit()
        offer = await worker.take()
        await worker.report(offer, "completed", exit_code=0)
        running.clock.at += 31 * 86_400.0
        assert await empty_old_jobs_once(Storage(running.fleet, MemoryBlobs())) == 1
        emptied = (await running.get("/api/audit", event_type="job.emptied"))["entries"]
        assert [one["target_id"] for one in emptied] == [job["job_id"]]


async def test_options_that_cannot_be_read_are_reported_anew(tmp_path: Path) -> None:
    async with damaged(tmp_path, OPTIONS_PREFIX + "simpletuner", "cut") as running:
        assert await newest_options(running.fleet, "simpletuner") is None
        worker = await running.worker(trainers=["simpletuner"])
        options = Options(version="4.10.1", options=())
        await keep_options(running.fleet, worker.id, "simpletuner", options)
        assert await newest_options(running.fleet, "simpletuner") is not None


async def test_a_key_that_cannot_be_read_opens_nothing_and_goes_with_the_next(tmp_path: Path) -> None:
    async with damaged(tmp_path, KEY_PREFIX + tokens.hashed("k"), "cut") as running:
        assert await running.fleet.read(lambda view: accounts.good_key(view, "k", 0.0)) is None
        await accounts.first_key(running.fleet, ORCHESTRATOR)
        kept = await running.fleet.read(lambda view: view.settings_with_prefix(KEY_PREFIX))
        assert KEY_PREFIX + tokens.hashed("k") not in kept
        assert len(kept) == 1
