"""`simpletuner jobs logs`: what of a log is shown, and how."""

import asyncio
from typing import Any

import msgspec
import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.text import TerminalLogText
from simpletuner_fleet.client import AsyncFleet, Fleet
from simpletuner_fleet.client.calls.logs import LONGEST_LINE
from simpletuner_fleet.http.api.jobs.log_pages import page_of
from simpletuner_fleet.storage.log_reading import StoredLog
from simpletuner_fleet.storage.logs import log_key
from tests.cli.conftest import Answer, CutOff, FakeServer, Run, Seen

PATH = "/api/jobs/j_1/logs"
WHOLE = b"one\n\x1b[31mtwo\x1b[0m\n\x1b[2Jthree\n"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simpletuner_fleet.cli.jobs.logs.RECONNECT_S", 0.0)


def with_job(server: FakeServer) -> FakeServer:
    server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "running"})
    return server


def page(lines: list[tuple[int, str, bool]], **more: Any) -> dict[str, Any]:
    log_lines = [
        {"offset": offset, "at": "2027-01-15T08:00:00.000Z", "text": text, "partial": partial}
        for offset, text, partial in lines
    ]
    end = lines[-1][0] + len(lines[-1][1]) + (not lines[-1][2]) if lines else 0
    return {
        "attempt": 1,
        "rank": 0,
        "start": 0,
        "end": end,
        "size": end,
        "gap_bytes": 0,
        "ended": False,
        "lines": log_lines,
        **more,
    }


def test_every_choice_reaches_the_server(run: Run, server: FakeServer) -> None:
    with_job(server).on("GET", PATH, Answer(200, b""))
    assert run("jobs", "logs", "j_1", "--since", "10m", "--rank", "3", "--url", server.url).code == 0
    assert server.seen[-1].query == {"since": ["600.000"], "rank": ["3"]}
    time = "2026-01-31T12:00:00Z"
    assert run("jobs", "logs", "j_1", "--since", time, "--attempt", "2", "--url", server.url).code == 0
    assert server.seen[-1].query == {"since": [time], "attempt": ["2"]}
    assert run("jobs", "logs", "j_1", "--since", "noon", "--url", server.url).code == ExitCode.USAGE
    assert (
        run("jobs", "logs", "j_1", "--since", "1m", "--tail", "1", "--url", server.url).code == ExitCode.USAGE
    )


def test_only_lines_with_the_pattern_are_shown(run: Run, server: FakeServer) -> None:
    with_job(server).on("GET", PATH, Answer(200, WHOLE))
    assert run("jobs", "logs", "j_1", "--grep", "^t(wo|hree)$|hre", "--url", server.url).out == "two\nthree\n"
    refused = run("jobs", "logs", "j_1", "--grep", "(", "--url", server.url)
    assert refused.code == ExitCode.USAGE
    assert "not a valid pattern" in refused.err


def test_times_stand_before_the_lines(run: Run, server: FakeServer) -> None:
    with_job(server).on("GET", PATH, page([(0, "one", False), (4, "tw", True)]))
    result = run("jobs", "logs", "j_1", "--timestamps", "--url", server.url)
    assert result.out == "2027-01-15T08:00:00.000Z one\n2027-01-15T08:00:00.000Z tw\n"
    assert server.seen[-1].query == {"offset": ["0"], "lines": ["5000"]}


def test_a_followed_log_with_times_has_no_line_twice(run: Run, server: FakeServer) -> None:
    asked: list[str] = []

    def answer(seen: Seen) -> Any:
        offset = seen.query["offset"][0]
        asked.append(offset)
        if len(asked) == 2:
            raise CutOff
        if len(asked) == 1:
            return page([(0, "one", False), (4, "tw", True)])
        return page([(4, "two", False)], ended=True)

    with_job(server).on("GET", PATH, answer)
    result = run("jobs", "logs", "j_1", "--timestamps", "-f", "--url", server.url)
    assert asked == ["0", "4", "4"]
    assert [line.split()[1] for line in result.out.splitlines()] == ["one", "two"]
    assert server.seen[-1].query["attempt"] == ["1"]


class ServedLog:
    """A log that is cut into pages and lines as a real orchestrator does it. It grows when the test says so."""

    def __init__(self, server: FakeServer, content: bytes, most_lines: int = 10_000) -> None:
        self._blobs, self._most_lines = MemoryBlobs(), most_lines
        self.log, self.ended = StoredLog(self._blobs, "a_1"), True
        self.grow(content)
        with_job(server).on("GET", PATH, lambda seen: asyncio.run(self._answer(seen)))

    def grow(self, more: bytes) -> None:
        size = asyncio.run(self.log.size())
        asyncio.run(self._blobs.append(log_key("a_1"), size, more))

    async def _answer(self, seen: Seen) -> Any:
        query = {name: int(values[0]) for name, values in seen.query.items()}
        size, as_page = await self.log.size(), "json" in seen.headers["accept"]
        start, tail = query.get("offset", 0), query.get("tail")
        if tail is not None:
            start = await self.log.start_of_lines_before(
                size, min(tail, self._most_lines) if as_page else tail
            )
        if not as_page:
            data = await self.log.read(start, query.get("limit", size))
            kind = {"content-type": "text/plain; charset=utf-8"}
            return Answer(200, data, {**kind, "x-log-offset": str(start), "x-log-attempt": "1"})
        most = min(query.get("lines") or tail or 1000, self._most_lines)
        page = await page_of(self.log, None, 0, start, size, size, most)
        return {**msgspec.to_builtins(page), "ended": self.ended, "attempt": 1}


LINES_OF_ANY_LENGTH = [
    "short",
    "n" * 20_000,
    "ü" * 50_000,
    "g" * 200_000,
    "",
    "last, without an end " + "e" * 70_000,
]


def test_whoever_looks_for_a_pattern_is_told_what_is_taken_as_a_line(
    server: FakeServer, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("jobs", "logs", "--help")
    helped = " ".join(capsys.readouterr().out.split())
    assert f"a line longer than {LONGEST_LINE // 2**20} MiB is taken as several" in helped
    for its_logs in (Fleet.logs, AsyncFleet.logs):
        assert f"A line longer than {LONGEST_LINE // 2**20} Mi characters comes as several." in (
            its_logs.__doc__ or ""
        )
    monkeypatch.setattr("simpletuner_fleet.client.calls.logs.LONGEST_LINE", 8)
    with_job(server).on("GET", PATH, Answer(200, b"a long line\n", {"x-log-attempt": "1"}))
    result = run("jobs", "logs", "j_1", "--grep", "long|line", "--url", server.url)
    assert (result.out, result.err) == ("a long l\n", "")


@pytest.mark.parametrize("more", [(), ("--tail", "1000"), ("-f",), ("--grep", "")])
def test_a_line_with_its_time_is_whole_however_long_it_is(
    run: Run, server: FakeServer, more: tuple[str, ...]
) -> None:
    ServedLog(server, "\n".join(LINES_OF_ANY_LENGTH).encode())
    result = run("jobs", "logs", "j_1", "--timestamps", *more, "--url", server.url)
    assert result.code == 0
    assert result.out.splitlines() == [f"{'-' * 24} {line}" for line in LINES_OF_ANY_LENGTH]


def test_of_a_long_progress_line_with_its_time_whole_states_are_shown(run: Run, server: FakeServer) -> None:
    states = [f"{number:07d} of 0010000" for number in range(10_000)]
    ServedLog(server, "\r".join(states).encode() + b"\r\nnext\n")
    result = run("jobs", "logs", "j_1", "--timestamps", "--url", server.url)
    shown = [line.removeprefix("-" * 24 + " ") for line in result.out.splitlines()]
    assert shown[-2:] == [states[-1], "next"]
    assert len(shown) == 4, "one a piece of the log that the server sends"
    assert set(shown[:-1]) <= set(states)


def test_as_many_of_the_last_lines_have_times_as_were_asked_for(run: Run, server: FakeServer) -> None:
    ServedLog(server, b"".join(b"%d\n" % number for number in range(30_000)))
    result = run("jobs", "logs", "j_1", "--timestamps", "--tail", "25000", "--url", server.url)
    assert [line.split()[1] for line in result.out.splitlines()] == [str(n) for n in range(5_000, 30_000)]


def test_an_answer_that_ends_before_the_attempt_does_is_asked_for_again(run: Run, server: FakeServer) -> None:
    """As from a server that shuts down in good order."""
    headers = {"x-log-attempt": "2", "x-log-offset": "0"}

    def answer(seen: Seen) -> Any:
        if "lines" in seen.query:
            over = seen.query["offset"] == [str(len(WHOLE))]
            return page([], ended=over, size=len(WHOLE), attempt=2)
        start = int(seen.query.get("offset", ["0"])[0])
        return Answer(200, WHOLE[start : start + 12], {**headers, "x-log-offset": str(start)})

    with_job(server).on("GET", PATH, answer)
    result = run("jobs", "logs", "j_1", "-f", "--raw", "--url", server.url)
    assert result.out.encode() == WHOLE
    assert server.seen[-1].query["attempt"] == ["2"]


def test_colours_are_kept_where_they_are_wanted_and_nothing_else_is() -> None:
    text = TerminalLogText(colours=True)
    shown = text.feed(b"\x1b[1;31mred\x1b[0m\x1b[2J\x1b]0;title\x07 \x1b[5") + text.feed(b"n!\x07", last=True)
    assert shown == "\x1b[1;31mred\x1b[0m !\\x07"


@pytest.mark.parametrize("more", [(), ("--timestamps",)])
def test_following_a_job_that_ended_before_any_attempt_ends(
    run: Run, server: FakeServer, more: tuple[str, ...]
) -> None:
    looks = 0

    def nothing_yet(seen: Seen) -> Any:
        nonlocal looks
        looks += 1
        if looks > 3:
            server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "cancelled"})
        if looks > 50:
            return Answer(410, b"it never ends")
        if "lines" in seen.query:
            return page([], attempt=None, size=0)
        return Answer(200, b"", {"X-Log-Offset": "0", "X-Log-Attempt": "0"})

    with_job(server).on("GET", PATH, nothing_yet)
    result = run("jobs", "logs", "j_1", "-f", *more, "--url", server.url)
    assert (result.code, result.out) == (0, ""), result.err


@pytest.mark.parametrize("words", [(), ("-f",), ("--raw",)])
def test_a_page_to_which_one_is_sent_on_is_no_log(
    run: Run, server: FakeServer, words: tuple[str, ...]
) -> None:
    moved = Answer(302, b"<html>log in", {"location": "https://portal.example.org/"})
    with_job(server).on("GET", PATH, moved)
    result = run("jobs", "logs", "j_1", *words, "--url", server.url)
    assert result.code == ExitCode.UNREACHABLE
    assert "<html>" not in result.out


def test_a_quiet_second_ends_no_followed_log(run: Run, server: FakeServer) -> None:
    pages = iter(
        [
            page([], attempt=None, size=0),
            page([(0, "one", False)]),
            page([], start=4, end=4, size=4),
            page([(4, "two", False)], ended=True),
        ]
    )
    with_job(server).on("GET", PATH, lambda seen: next(pages))
    result = run("jobs", "logs", "j_1", "-f", "--timestamps", "--url", server.url)
    assert result.code == 0, result.err
    assert [line.split()[1] for line in result.out.splitlines()] == ["one", "two"]


def test_of_an_empty_log_there_are_no_lines(run: Run, server: FakeServer) -> None:
    with_job(server).on("GET", PATH, page([]))
    result = run("jobs", "logs", "j_1", "--timestamps", "--url", server.url)
    assert (result.code, result.out) == (0, ""), result.err
