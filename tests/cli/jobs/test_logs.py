"""`simpletuner jobs logs`: what of a log is shown, and how."""

from typing import Any

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.text import TerminalLogText
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
