"""`jobs delete`, `purge`, `cancel --all`, `--not-before` and `--in`, against an orchestrator in this process."""

import argparse
import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from simpletuner_fleet.cli.jobs.start_times import asked_start, moment_of
from simpletuner_fleet.settings.values import start_time
from tests.cli.conftest import Result, Run
from tests.http.api_kit import ADMIN, CPU_CONFIG, Running, orchestrator

Asked = Any
NOW = datetime(2026, 11, 17, 20, 30, tzinfo=UTC)


@pytest.fixture
def said(run: Run, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """The command line in a thread, against an orchestrator in this loop."""

    async def ask(running: Running, *words: str) -> Result:
        monkeypatch.setenv("SIMPLETUNER_URL", running.listening.url)
        monkeypatch.setenv("SIMPLETUNER_API_TOKEN", ADMIN)
        return await asyncio.to_thread(run, "jobs", *words)

    return ask


async def cancelled(running: Running) -> str:
    job_id = str((await running.submit())["job_id"])
    await running.post(f"/api/jobs/{job_id}/cancel")
    return job_id


async def test_each_job_that_is_named_is_told_of_and_one_refused_keeps_no_other(said: Asked) -> None:
    async with orchestrator() as running:
        one, two = await cancelled(running), await cancelled(running)
        waits = (await running.submit())["job_id"]
        answer = await said(running, "delete", one, waits, two, "--json")
        assert answer.code == 1, answer.err
        assert [(row["id"], row["deleted"]) for row in answer.json["jobs"]] == [
            *((one, True), (waits, False), (two, True)),
        ]
        again = await said(running, "delete", one)
        assert again.code == 0, again.err
        assert f"{one} is deleted" in again.err
        unknown = await said(running, "delete", "j_nothing")
        assert unknown.code == 1
        assert (await running.get("/api/jobs"))["total"] == 1


async def test_a_purge_counts_first_deletes_with_yes_and_can_be_repeated(said: Asked) -> None:
    async with orchestrator() as running:
        running.clock.at = time.time() - 40 * 86_400
        old = [await cancelled(running) for _ in range(3)]
        running.clock.at = time.time()
        young = await cancelled(running)
        for words in ((), ("--dry-run", "--yes")):
            counted = await said(running, "purge", "--older-than", "30d", *words)
            assert counted.code == 0, counted.err
            assert "3 jobs match; nothing was changed" in counted.err
        none = await said(running, "purge", "--older-than", "30d", "--state", "failed", "--yes")
        assert "0 jobs match" in none.err
        done = await said(running, "purge", "--older-than", "30d", "--state", "cancelled", "--yes")
        assert done.code == 0, done.err
        assert "done: 3 jobs" in done.err
        again = await said(running, "purge", "--older-than", "30d", "--yes", "--json")
        assert (again.code, again.json) == (0, {"count": 0})
        assert [row["id"] for row in (await running.get("/api/jobs"))["jobs"]] == [young]
        assert young not in old


async def test_all_jobs_of_a_status_are_cancelled_with_yes(said: Asked) -> None:
    async with orchestrator() as running:
        waiting = [(await running.submit())["job_id"] for _ in range(2)]
        counted = await said(running, "cancel", "--all", "--status", "queued")
        assert "2 jobs match; nothing was changed" in counted.err
        both = await said(running, "cancel", waiting[0], "--all")
        assert both.code == 2
        nobody = await said(running, "cancel")
        assert nobody.code == 2
        done = await said(running, "cancel", "--all", "--status", "queued", "--yes")
        assert done.code == 0, done.err
        assert [(await running.job(one))["status"] for one in waiting] == ["cancelled", "cancelled"]


async def test_a_start_time_is_submitted_changed_and_taken_away(said: Asked) -> None:
    async with orchestrator() as running:
        running.clock.at = time.time()
        await running.save_config("c", CPU_CONFIG)
        made = await said(running, "submit", "c", "--in", "2h", "--json")
        assert made.code == 0, made.err
        job_id = made.json["job_id"]
        job = await running.job(job_id)
        begins = datetime.fromisoformat(job["not_before"]).timestamp()
        assert 7190 < begins - running.clock.at < 7210
        assert job["explain"]["code"] == "START_TIME"
        later = datetime.fromtimestamp(running.clock.at + 3 * 86_400, UTC).strftime("%Y-%m-%dT%H:%MZ")
        edited = await said(running, "edit", job_id, "--not-before", later, "--json")
        assert edited.code == 0, edited.err
        assert edited.json["not_before"].startswith(later.removesuffix("Z"))
        lifted = await said(running, "edit", job_id, "--not-before", "none", "--json")
        assert lifted.code == 0, lifted.err
        assert lifted.json["not_before"] is None
        wrong = await said(running, "submit", "c", "--not-before", "soon")
        assert wrong.code == 2


@pytest.mark.parametrize(
    ("text", "zone", "expected"),
    [
        ("22:00", "UTC", "2026-11-17T22:00:00+00:00"),
        ("20:30", "UTC", "2026-11-18T20:30:00+00:00"),
        ("7:15", "UTC", "2026-11-18T07:15:00+00:00"),
        ("22:00", "Asia/Tokyo", "2026-11-18T22:00:00+09:00"),
        ("2026-11-18T22:00", "Asia/Tokyo", "2026-11-18T22:00:00+09:00"),
        ("2026-11-18T22:00:00Z", "Asia/Tokyo", "2026-11-18T22:00:00+00:00"),
    ],
)
def test_a_time_is_one_of_here_unless_it_says_where(
    text: str, zone: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert moment_of(start_time(text), NOW) == datetime.fromisoformat(expected)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "25:00", "22", "tonight", "2026-11-18", "2026-13-01T00:00"])
def test_what_names_no_moment_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected a time such as"):
        start_time(text)


def test_a_span_is_counted_from_now() -> None:
    asked = asked_start(argparse.Namespace(start_in=5400.0, not_before=None), NOW)
    assert asked is not None
    assert datetime.fromisoformat(asked) == NOW + timedelta(hours=1.5)
