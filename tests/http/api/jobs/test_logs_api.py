"""Logs as they arrive and as they are looked at."""

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.http.api.jobs import log_search
from simpletuner_fleet.http.api.jobs.log_pages import shown
from simpletuner_fleet.http.edge.edge import EdgeSettings
from simpletuner_fleet.storage.log_reading import MAX_LINE_BYTES
from tests.http.api_kit import Agent, Running, TurnedClock, orchestrator

START = "2027-01-15T08:00:00.000Z"
JSON = {"Accept": "application/json"}


async def put(
    agent: Agent,
    offer: dict[str, Any],
    offset: int,
    data: bytes,
    *,
    expect: int = 200,
    ages: str = "",
    **query: Any,
) -> Any:
    answer = await agent.http.put(
        f"/api/workers/job/{offer['job_id']}/logs",
        params={"epoch": offer["epoch"], "offset": offset, **query},
        content=data,
        headers={"Content-Type": "application/octet-stream", "X-Log-Ages": ages},
    )
    assert answer.status_code == expect, answer.text
    return answer.json()


class Log:
    def __init__(self, running: Running, agent: Agent, offer: dict[str, Any]) -> None:
        self.running, self.agent, self.offer = running, agent, offer
        self.path = f"/api/jobs/{offer['job_id']}/logs"

    async def put(self, offset: int, data: bytes, **more: Any) -> Any:
        return await put(self.agent, self.offer, offset, data, **more)

    async def text(self, **query: Any) -> bytes:
        return (await self.running.http.get(self.path, params=query)).content

    async def page(self, **query: Any) -> Any:
        answer = await self.running.http.get(self.path, params=query, headers=JSON)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def search(self, expect: int = 200, **query: Any) -> Any:
        answer = await self.running.http.get(f"{self.path}/search", params=query)
        assert answer.status_code == expect, answer.text
        return answer.json()


async def taken(running: Running) -> Log:
    agent = await running.worker()
    await running.submit()
    return Log(running, agent, await agent.take())


async def test_bytes_arrive_as_they_are_and_repeats_are_harmless() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        nasty = b"\x00\xff\r\n\x1b[2J"
        assert await log.put(0, nasty) == {"next_offset": 8}
        assert await log.put(0, nasty) == {"next_offset": 8}
        assert await log.put(6, b"2Jtail", ages="6:0") == {"next_offset": 12}
        assert await log.put(99, b"late") == {"next_offset": 12}
        assert await log.put(0, b"") == {"next_offset": 12}
        assert await log.text() == nasty + b"tail"


@pytest.mark.parametrize(
    "ages", ["x", "0", "0:-1", "5:1", "0:1,0:2", "0:1,,", "0:" + "9" * 60, "0:1," * 2000]
)
async def test_garbage_in_ages_is_a_field_error(ages: str) -> None:
    async with orchestrator() as running:
        log = await taken(running)
        refused = await log.put(0, b"abc", ages=ages, expect=422)
        assert refused["errors"][0]["path"] == "x-log-ages"


async def test_bytes_of_another_attempt_or_too_many_are_refused() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"x", epoch=999, expect=409)
        await log.put(0, b"x", rank=5000, expect=422)
        await log.put(2**31, b"x", expect=413)
        await log.put(0, b"x" * (1024 * 1024 + 1), expect=413)


async def test_every_line_has_the_time_its_first_byte_was_seen() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"one\ntwo\nthree\n", ages="0:60000,6:2000,8:1500")
        running.clock.at += 10
        await log.put(14, b"four\nfi", ages="14:0")
        page = await log.page()
        assert [(line["offset"], line["text"], line["at"]) for line in page["lines"]] == [
            (0, "one", "2027-01-15T07:59:00.000Z"),
            (4, "two", "2027-01-15T07:59:00.000Z"),
            (8, "three", "2027-01-15T07:59:58.500Z"),
            (14, "four", "2027-01-15T08:00:10.000Z"),
            (19, "fi", "2027-01-15T08:00:10.000Z"),
        ]
        assert [line["partial"] for line in page["lines"]] == [False] * 4 + [True]
        assert (page["start"], page["end"], page["size"], page["gap_bytes"]) == (0, 21, 21, 0)
        assert (page["attempt"], page["rank"], page["ended"]) == (1, 0, False)
        stamped = (await log.text(timestamps=1)).decode().split("\n")
        assert stamped[0] == "2027-01-15T07:59:00.000Z one"
        assert stamped[4] == "2027-01-15T08:00:10.000Z fi"
        assert await log.text(since="2027-01-15T07:59:57Z") == b"two\nthree\nfour\nfi"
        assert await log.text(since="10.5") == b"four\nfi"
        assert await log.text(since="2027-01-16T00:00:00Z") == b"fi"
        assert (await running.http.get(log.path, params={"since": "noon"})).status_code == 422


async def test_a_line_of_any_length_has_one_time_before_it_and_none_within() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        long = b"x" * 300_000
        await log.put(0, b"one\n" + long + b"\ntwo\n" + long, ages="0:0")
        stamped = (await log.text(timestamps=1)).split(b"\n")
        assert [line.partition(b" ")[2] for line in stamped] == [b"one", long, b"two", long]


async def test_times_never_run_backwards_and_a_repeat_changes_none() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"a\n", ages="0:1000")
        await log.put(0, b"a\nb\n", ages="0:9000,2:8000")
        page = await log.page()
        assert [line["at"] for line in page["lines"]] == ["2027-01-15T07:59:59.000Z"] * 2


async def test_a_reader_pages_up_and_down_by_lines() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        lines = [b"line %d\n" % at for at in range(5000)]
        await log.put(0, b"".join(lines))
        last = await log.page(tail=100)
        assert [line["text"] for line in last["lines"]][::99] == ["line 4900", "line 4999"]
        above = await log.page(before=last["start"], lines=50)
        assert [line["text"] for line in above["lines"]] == [f"line {at}" for at in range(4850, 4900)]
        assert above["end"] == last["start"]
        first = await log.page(offset=0, lines=3)
        assert [line["text"] for line in first["lines"]] == ["line 0", "line 1", "line 2"]
        assert (await log.page(offset=first["end"], lines=1))["lines"][0]["text"] == "line 3"
        assert len((await log.page())["lines"]) == 1000
        assert await log.text(before=14, lines=1) == b"line 1\n"
        assert (await log.page(before=0))["lines"] == []
        for query in ("before=1&tail=1", "since=1&offset=1", "lines=0"):
            assert (await running.http.get(f"{log.path}?{query}", headers=JSON)).status_code == 422


async def test_a_line_without_end_is_shown_in_pieces() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"x" * (2 * MAX_LINE_BYTES + 5) + b"\nend\n")
        page = await log.page(offset=0)
        assert [line["offset"] for line in page["lines"]] == [
            0,
            MAX_LINE_BYTES,
            2 * MAX_LINE_BYTES,
            2 * MAX_LINE_BYTES + 6,
        ]
        assert not any(line["partial"] for line in page["lines"])


def test_a_progress_line_is_shown_as_a_terminal_would_show_it() -> None:
    assert shown(b"\r 1%\r 2%\r100% done\r") == "100% done"
    assert shown(b"") == ""
    assert shown(b"\xff!") == "\ufffd!"


async def test_an_ended_attempt_says_so_and_counts_what_was_left_out() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"head", gap=0)
        await log.put(4, b"\n... left out\ntail\n", gap=12345)
        await log.agent.report(log.offer, "completed")
        page = await log.page()
        assert (page["gap_bytes"], page["ended"]) == (12345, True)


async def test_older_agents_get_times_and_gaps_too() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        body = {"epoch": log.offer["epoch"], "offset": 0, "data": "b2xkCg==", "gap": 7}
        await log.agent.call(f"job/{log.offer['job_id']}/logs", body)
        page = await log.page()
        assert (page["lines"][0]["text"], page["lines"][0]["at"], page["gap_bytes"]) == ("old", START, 7)


async def test_search_finds_lines_by_text_and_by_pattern() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        lines = [b"step %d loss %f" % (at, 1 / (at + 1)) for at in range(20_000)]
        lines[7], lines[15_000] = "Über NaN".encode(), b"loss NaN at last"
        data = b"\n".join(lines)
        await log.put(0, data)
        hits = await log.search(q="NaN")
        assert [match["line_text"] for match in hits["matches"]] == ["Über NaN", "loss NaN at last"]
        assert data[hits["matches"][1]["offset"] :].startswith(b"loss NaN at last")
        assert hits["matches"][0]["at"] == START
        assert (hits["done"], hits["next"], hits["size"]) == (True, len(data), len(data))
        pattern = r"^step 190[0-9]7 loss 0\.0000"
        hits = await log.search(q=pattern, regex=1, limit=3)
        assert [match["line_text"].split()[1] for match in hits["matches"]] == ["19007", "19017", "19027"]
        assert not hits["done"]
        more = await log.search(q=pattern, regex=1, **{"from": hits["next"]})
        assert more["matches"][0]["line_text"].startswith("step 19037 ")
        assert (await log.search(q="nothing of the kind"))["matches"] == []
        assert (await log.search(q="[", expect=422, regex=1))["errors"][0]["path"] == "$.q"
        await log.search(q="", expect=422)
        await log.search(q="a\nb", expect=422)


async def test_a_pattern_that_never_ends_is_ended() -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"a" * 60 + b"!\n")
        began = time.monotonic()
        refused = await log.search(q="(a+)+$", regex=1, expect=422)
        assert refused["code"] == "pattern_too_slow"
        assert time.monotonic() - began < 10


async def test_a_search_whose_process_ends_at_its_start_is_told_to_be_unavailable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async with orchestrator() as running:
        log = await taken(running)
        await log.put(0, b"a line\n")
        monkeypatch.setattr(log_search, "CHILD", tmp_path / "no_such_program.py")
        for _start in range(5):
            refused = await log.search(q="a+", regex=1, expect=503)
            assert refused["code"] == "search_unavailable"
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no_python"))
        assert (await log.search(q="a+", regex=1, expect=503))["code"] == "search_unavailable"
        assert len((await log.search(q="a"))["matches"]) == 1


async def test_a_job_without_any_attempt_has_an_empty_page_and_no_match() -> None:
    async with orchestrator() as running:
        job = await running.submit()
        path = f"/api/jobs/{job['job_id']}/logs"
        page = (await running.http.get(path, headers=JSON)).json()
        assert (page["attempt"], page["lines"], page["size"]) == (None, [], 0)
        assert (await running.get(f"{path}/search", q="x"))["done"]


async def test_a_million_lines_open_at_their_end_at_once(tmp_path: Any) -> None:
    async with orchestrator(blobs=FolderBlobs(tmp_path), clock=TurnedClock()) as running:
        log = await taken(running)
        block = (
            b"a line of a training log that is about a hundred characters long, as most of them really are\n"
            * 10_000
        )
        key = f"logs/{log.offer['attempt_id']}"
        for at in range(100):
            await running.deps.blobs.append(key, at * len(block), block)
        began = time.monotonic()
        page = await log.page(tail=1000)
        took_s = time.monotonic() - began
        assert len(page["lines"]) == 1000
        assert took_s < 5
        print(f"last 1,000 of 1,000,000 lines in {took_s * 1000:.0f} ms")


class SlowBlobs(MemoryBlobs):
    """Takes its time to say how long a log is, once it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.may_go_on.set()

    async def size(self, key: str) -> int:
        self.asked.set()
        await self.may_go_on.wait()
        return await super().size(key)


async def test_a_token_that_is_revoked_while_a_log_is_opened_reads_nothing_of_it() -> None:
    blobs = SlowBlobs()
    async with orchestrator(blobs=blobs) as running:
        log = await taken(running)
        await log.put(0, b"one\n")
        made = await running.post("/api/admin/tokens", {"name": "some", "permissions": ["jobs.read"]})
        blobs.asked.clear()
        blobs.may_go_on.clear()
        async with running.as_user(made["token"]) as reader:
            following = asyncio.create_task(reader.get(log.path, params={"follow": 1, "tail": 5}, timeout=5))
            await blobs.asked.wait()
            revoked = await running.http.delete(f"/api/admin/tokens/{made['id']}")
            assert revoked.status_code == 200
            blobs.may_go_on.set()
            assert (await following).content == b""
            assert (await reader.get(log.path)).status_code == 401
        assert not running.deps.following.by_caller


async def test_streams_that_a_doubtful_leader_withholds_keep_no_place() -> None:
    sure = True
    async with orchestrator(settings=EdgeSettings(may_promise=lambda: sure)) as running:
        job_id = (await running.submit())["job_id"]
        sure = False
        for path in (f"/api/jobs/{job_id}/logs?follow=1", "/api/events"):
            assert (await running.http.get(path)).json()["code"] == "not_leader"
        assert not running.deps.following.by_caller
        assert not running.deps.watching.by_caller
        assert running.deps.hub.watcher_count == 0


@pytest.mark.parametrize("path", ["/api/events", "/api/jobs/{}/logs?follow=1&offset=0"])
async def test_a_token_that_expires_while_it_follows_hears_no_more(path: str) -> None:
    async with orchestrator(policy=Policy(ping_interval_s=0.05)) as running:
        log = await taken(running)
        job_id = log.offer["job_id"]
        await log.put(0, b"one\n")
        wanted = {"name": "short", "permissions": ["jobs.read"], "expires_in_s": 60}
        made = await running.post("/api/admin/tokens", wanted)
        async with (
            running.as_user(made["token"]) as reader,
            reader.stream("GET", path.format(job_id), timeout=5) as following,
        ):
            pieces = following.aiter_raw()
            assert await anext(pieces)
            running.clock.at += 60
            running.deps.log_wakeups.wake(job_id)
            with contextlib.suppress(httpx2.RemoteProtocolError):
                async for _ in pieces:
                    pass
            assert (await reader.get(log.path)).status_code == 401
        assert not running.deps.following.by_caller
        assert not running.deps.watching.by_caller
