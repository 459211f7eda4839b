"""Values that are well-formed and mad: they are refused or made harmless, and never a 500."""

import asyncio
from typing import Any

import pytest

from simpletuner_fleet.http.api.open_streams import FOLLOWERS, STREAMS
from simpletuner_fleet.http.edge.routes import rfc3339
from tests.http.api.jobs.test_logs_api import Log, taken
from tests.http.api_kit import Running, orchestrator

HUGE = "9" * 30
EVENTS = {"Accept": "text/event-stream"}


def test_times_that_no_calendar_has_become_the_nearest_that_it_has() -> None:
    for at in (1e300, float("inf"), 253_402_300_800.0):
        assert rfc3339(at) == "9999-12-31T23:59:59.000Z"
    for at in (-1e300, float("-inf")):
        assert rfc3339(at) == "0001-01-01T00:00:00.000Z"
    assert rfc3339(float("nan")) is None


@pytest.mark.parametrize("last", ["9" * 5000, HUGE, "-1", "٣", "1e3", "nonsense", "0x10"])
async def test_an_event_id_that_is_none_of_ours_is_as_good_as_none(last: str) -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"hello\n")
        answer = await running.http.get(
            log.path, headers=[(b"accept", b"text/event-stream"), (b"last-event-id", last.encode())]
        )
        assert answer.status_code == 200
        assert "hello" in answer.text


async def test_an_event_id_of_ours_is_gone_on_from() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"hello\nworld\n")
        answer = await running.http.get(log.path, headers={**EVENTS, "Last-Event-ID": "6"})
        assert "world" in answer.text
        assert "hello" not in answer.text


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("", {"offset": HUGE}),
        ("", {"offset": str(2**63)}),
        ("", {"tail": HUGE}),
        ("", {"attempt": HUGE}),
        ("", {"since": "1e300"}),
        ("/search", {"q": "x", "from": HUGE}),
    ],
)
async def test_numbers_that_nothing_can_have_are_refused(path: str, query: dict[str, str]) -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"hello\n")
        assert (await running.http.get(log.path + path, params=query)).status_code == 422
        await running.save_config()
        for more in ("/api/configs/c?version=", "/api/admin/audit?offset="):
            assert (await running.http.get(more + HUGE)).status_code in (404, 422)


async def following(running: Running, log: Log) -> Any:
    return await running.http.send(
        running.http.build_request("GET", log.path, params={"follow": "1"}), stream=True
    )


async def test_one_caller_cannot_follow_endlessly_many_logs() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"hello\n")
        running.deps.following.by_caller["t_admin"] = FOLLOWERS.per_caller
        refused = await running.http.get(log.path, params={"follow": "1"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
        assert (await running.http.get(log.path)).status_code == 200
        running.deps.following.by_caller.clear()
        followers = [await following(running, log) for _ in range(3)]
        assert running.deps.following.by_caller == {"t_admin": 3}
        for follower in followers:
            await follower.aclose()
        for _ in range(500):
            if not running.deps.following.by_caller:
                break
            await asyncio.sleep(0.01)
        assert not running.deps.following.by_caller
        assert not running.deps.following.by_address


async def test_all_callers_together_cannot_watch_endlessly() -> None:
    async with orchestrator() as running:
        running.deps.watching.by_caller["t_somebody"] = STREAMS.in_all
        assert (await running.http.get("/api/events")).status_code == 429
