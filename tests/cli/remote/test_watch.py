"""Watching, waiting and following: the event stream changes, the commands look again."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from tests.cli.conftest import Answer, FakeServer, Run, Seen, problem
from tests.quiet_server import QuietServer

FAR_BEYOND_S = 20.0
JSON_HEADERS = {"Content-Type": "application/json"}
LOG_HEADERS = {"Content-Type": "text/plain; charset=utf-8", "X-Log-Attempt": "1"}
BASE = {"id": "j_1", "config_name": "c", "attempt": 0, "max_retries": 3, "gpus": []}


class LiveServer:
    """One job that takes its next state each time a client has looked; each step is an event."""

    def __init__(self, states: list[dict[str, Any]]) -> None:
        self.states = states
        self.at = 0
        self.looked = threading.Semaphore(0)
        self.log = b"loss 0.5\nloss 0.4\n"
        self.streams = 0
        self.break_streams = 0
        live = self

        class Handling(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/api/events":
                    live.stream(self)
                elif path == "/api/jobs/j_1":
                    job = live.states[live.at]
                    live.looked.release()
                    self._body(json.dumps(job).encode())
                elif path == "/api/jobs":
                    live.looked.release()
                    self._body(json.dumps({"jobs": [live.states[live.at]], "next": None}).encode())
                elif "lines=" in self.path:
                    page = {"attempt": 1, "ended": True, "size": len(live.log)}
                    self._body(json.dumps(page).encode())
                else:
                    self._body(live.log, LOG_HEADERS)

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._body(b'{"success": true, "job_id": "j_1", "status": "queued"}')

            def _body(self, body: bytes, headers: Mapping[str, str] = JSON_HEADERS) -> None:
                self.send_response(200)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = QuietServer(("127.0.0.1", 0), Handling)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def stream(self, to: BaseHTTPRequestHandler) -> None:
        self.streams += 1
        to.send_response(200)
        to.send_header("Content-Type", "text/event-stream")
        to.send_header("Connection", "close")
        to.end_headers()
        to.close_connection = True
        if self.streams <= self.break_streams:
            return
        while self.at < len(self.states) - 1:
            if not self.looked.acquire(timeout=10):
                return
            self.at += 1
            to.wfile.write(b'event: job\nid: %d\ndata: {"type": "job.changed"}\n\n' % self.at)
            to.wfile.flush()
        threading.Event().wait(0.5)

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def live() -> Iterator[LiveServer]:
    server = LiveServer(
        [
            {**BASE, "status": "queued"},
            {**BASE, "status": "running", "attempt": 1},
            {**BASE, "status": "completed", "attempt": 1},
        ]
    )
    yield server
    server.stop()


def test_waiting_ends_with_the_job(run: Run, live: LiveServer) -> None:
    result = run("jobs", "wait", "j_1", "--url", live.url, "--json")
    assert result.code == ExitCode.OK
    assert result.json["status"] == "completed"


def test_a_failed_job_is_told_by_the_exit_code(run: Run, live: LiveServer) -> None:
    live.states[-1]["status"] = "failed"
    assert run("jobs", "wait", "j_1", "--url", live.url).code == ExitCode.JOB_FAILED


def test_any_end_is_fine_if_asked_so(run: Run, live: LiveServer) -> None:
    live.states[-1]["status"] = "cancelled"
    assert run("jobs", "wait", "j_1", "--for", "terminal", "--url", live.url).code == ExitCode.OK


def test_waiting_gives_up_in_time(run: Run, live: LiveServer) -> None:
    live.states = live.states[:1]
    result = run("jobs", "wait", "j_1", "--timeout", "0.5", "--url", live.url)
    assert result.code == ExitCode.TIMEOUT
    assert "it is queued" in result.err


@pytest.mark.parametrize("answers", [0, 1, 2])
def test_waiting_gives_up_in_time_though_no_answer_comes(ask: Run, server: FakeServer, answers: int) -> None:
    """The request's own timeout would be half a minute."""
    over, left = threading.Event(), [answers]

    def answer(seen: Seen) -> Any:
        left[0] -= 1
        if left[0] < 0:
            over.wait(FAR_BEYOND_S)
        return {**BASE, "status": "queued"}

    server.on("GET", "/api/jobs/j_1", answer)
    server.on("GET", "/api/events", Answer(200, b""))
    began = time.monotonic()
    try:
        result = ask("jobs", "wait", "j_1", "--timeout", "0.5")
        took_s = time.monotonic() - began
    finally:
        over.set()
    assert result.code in (ExitCode.TIMEOUT, ExitCode.UNREACHABLE)
    assert took_s < FAR_BEYOND_S


class PingingStream:
    """Has one job that does not end, and a stream that pings once and then is silent while it is open."""

    def __init__(self) -> None:
        self.opened = 0
        stream, ended = self, threading.Event()

        class Handling(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                is_stream = self.path.startswith("/api/events")
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
                self.end_headers()
                if not is_stream:
                    self.wfile.write(json.dumps({**BASE, "status": "queued"}).encode())
                    return
                stream.opened += 1
                if stream.opened == 1:
                    ended.wait(0.3)
                    self.wfile.write(b"event: ping\ndata: {}\n\n")
                    self.wfile.flush()
                ended.wait(10)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._ended = ended
        self._server = QuietServer(("127.0.0.1", 0), Handling)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def test_waiting_gives_up_in_time_though_the_stream_pings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that was opened for all of the time would be read for as long again after each ping."""
    monkeypatch.setattr("simpletuner_fleet.cli.remote.changes.LATE_S", 0.1)
    pinging = PingingStream()
    try:
        result = run("jobs", "wait", "j_1", "--timeout", "1.5", "--url", pinging.url)
    finally:
        pinging.stop()
    assert result.code == ExitCode.TIMEOUT
    assert pinging.opened == 2
    assert "interrupted" not in result.err


def test_watching_one_job_prints_each_state_once(run: Run, live: LiveServer) -> None:
    result = run("jobs", "watch", "j_1", "--url", live.url)
    assert result.code == ExitCode.OK
    states = [json.loads(line)["status"] for line in result.out.splitlines()]
    assert states[-1] == "completed"
    assert len(states) == len(set(states))


def test_watching_with_names_prints_a_name_for_each_change(run: Run, live: LiveServer) -> None:
    result = run("jobs", "watch", "j_1", "-o", "name", "--url", live.url)
    assert result.code == ExitCode.OK
    assert set(result.out.splitlines()) == {"j_1"}


def test_a_broken_stream_is_opened_again(run: Run, live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simpletuner_fleet.cli.remote.changes.RECONNECT_S", 0.01)
    live.break_streams = 2
    result = run("jobs", "wait", "j_1", "--url", live.url)
    assert result.code == ExitCode.OK
    assert "live updates interrupted; reconnecting" in result.err


BAD_GATEWAY = Answer(502, b"<html>Bad Gateway</html>", {"Content-Type": "text/html"})
NOBODY_LEADS = problem(503, "not_leader", "Nobody leads.")
EVENT = Answer(200, b'event: job\ndata: {"type": "job.changed"}\n\n', {"Content-Type": "text/event-stream"})


class RestartingServer:
    """Answers what it does until its answers are used up, and the last of them from then on."""

    def __init__(self, server: FakeServer, looks: list[Any], streams: list[Any]) -> None:
        self.looks, self.streams = looks, streams
        server.on("GET", "/api/jobs/j_1", lambda seen: self._following(self.looks))
        server.on("GET", "/api/events", lambda seen: self._following(self.streams))

    def _following(self, answers: list[Any]) -> Any:
        return answers.pop(0) if len(answers) > 1 else answers[0]


@pytest.mark.parametrize("passing", [BAD_GATEWAY, NOBODY_LEADS], ids=["a proxy", "no leader"])
@pytest.mark.parametrize("words", [("wait",), ("watch", "-o", "name")], ids=lambda words: str(words[0]))
def test_a_restart_behind_a_proxy_is_waited_for(
    ask: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], passing: Answer
) -> None:
    monkeypatch.setattr("simpletuner_fleet.cli.remote.changes.RECONNECT_S", 0.01)
    queued, completed = {**BASE, "status": "queued"}, {**BASE, "status": "completed"}
    seen_twice = [queued, queued]  # by the command that looks for its id, and by its first look
    job = RestartingServer(server, [*seen_twice, passing, completed], [EVENT, passing, EVENT])
    result = ask("jobs", words[0], "j_1", *words[1:])
    assert result.code == ExitCode.OK, result.err
    assert job.looks == [completed]
    assert job.streams == [EVENT]


LOGIN_PAGE = Answer(200, b"<html>Log in</html>", {"Content-Type": "text/html"})


@pytest.mark.parametrize("instead", [BAD_GATEWAY, LOGIN_PAGE], ids=["an error of a proxy", "a log-in page"])
def test_where_no_events_come_through_changes_are_seen_all_the_same(
    ask: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch, instead: Answer
) -> None:
    monkeypatch.setattr("simpletuner_fleet.cli.remote.changes.RECONNECT_S", 0.01)
    queued, completed = {**BASE, "status": "queued"}, {**BASE, "status": "completed"}
    RestartingServer(server, [queued, queued, queued, completed], [instead])
    result = ask("jobs", "wait", "j_1")
    assert result.code == ExitCode.OK, result.err
    assert "live updates interrupted" in result.err


def test_a_server_that_was_never_reached_is_not_waited_for(ask: Run, server: FakeServer) -> None:
    RestartingServer(server, [{**BASE, "status": "queued"}, BAD_GATEWAY], [BAD_GATEWAY])
    result = ask("jobs", "wait", "j_1")
    assert result.code == ExitCode.UNREACHABLE
    assert "something else answers in place of the orchestrator" in result.err


def test_a_refusal_ends_the_waiting(ask: Run, server: FakeServer) -> None:
    refused = problem(403, "forbidden", "Not yours.")
    queued = {**BASE, "status": "queued"}
    RestartingServer(server, [queued, queued, refused], [EVENT])
    assert ask("jobs", "wait", "j_1").code == ExitCode.AUTH


def test_a_followed_log_goes_on_behind_a_proxy_that_had_no_server(
    ask: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.cli.jobs.logs.RECONNECT_S", 0.0)
    whole, asked = b"one\ntwo\n", list[dict[str, list[str]]]()

    def log(seen: Seen) -> Any:
        asked.append(seen.query)
        if len(asked) in (2, 3):
            return BAD_GATEWAY
        if "lines" in seen.query:
            return {"attempt": 1, "size": len(whole), "ended": True}
        offset = int(seen.query.get("offset", ["0"])[0])
        piece = whole[offset : offset + 4]
        return Answer(200, piece, {"X-Log-Offset": str(offset), "X-Log-Attempt": "1"})

    server.on("GET", "/api/jobs/j_1", {"id": "j_1", "status": "running"})
    server.on("GET", "/api/jobs/j_1/logs", log)
    result = ask("jobs", "logs", "j_1", "-f")
    assert result.code == ExitCode.OK, result.err
    assert result.out.encode() == whole


def test_submit_and_wait_is_one_command(run: Run, live: LiveServer) -> None:
    live.states[-1]["status"] = "failed"
    result = run("jobs", "submit", "c", "--wait", "--url", live.url, "--json")
    assert result.code == ExitCode.JOB_FAILED
    assert result.json["status"] == "failed"


def test_following_shows_the_log_on_stdout_and_the_states_on_stderr(run: Run, live: LiveServer) -> None:
    result = run("jobs", "submit", "c", "--follow", "--url", live.url)
    assert result.code == ExitCode.OK
    assert result.out == "loss 0.5\nloss 0.4\n"
    assert "submitted j_1" in result.err
    assert "j_1: completed" in result.err


def test_a_failed_job_that_was_followed_comes_with_advice(run: Run, live: LiveServer) -> None:
    live.states[-1] |= {"status": "failed", "error": "exit code 1"}
    live.states[-1]["failure"] = {"class": "disk_full", "evidence": "No space left", "advice": "Free space."}
    result = run("jobs", "submit", "c", "-f", "--url", live.url)
    assert result.code == ExitCode.JOB_FAILED
    assert "next: Free space.\n" in result.err
    assert "nvidia-smi" in result.err


class SilentServer:
    """Sends a part of a log and then nothing, with the connection open: as if the way between had been lost."""

    def __init__(self, whole: bytes) -> None:
        self.opened = 0
        ended = threading.Event()
        silent = self

        class Handling(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                if not path.endswith("/logs"):
                    self._body(b'{"id": "j_1", "status": "running"}')
                elif "lines=" in query:
                    self._body(json.dumps({"attempt": 1, "size": len(whole), "ended": True}).encode())
                else:
                    self._log(int(query.partition("offset=")[2].partition("&")[0] or 0))

            def _log(self, offset: int) -> None:
                silent.opened += 1
                self._body(whole[offset : offset + 4], {**LOG_HEADERS, "X-Log-Offset": str(offset)})
                if silent.opened == 1:
                    ended.wait(10)

            def _body(self, body: bytes, more: dict[str, str] | None = None) -> None:
                self.send_response(200)
                for name, value in (more or JSON_HEADERS).items():
                    self.send_header(name, value)
                length = len(body) + (1 if more and silent.opened == 1 else 0)
                self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._ended = ended
        self._server = QuietServer(("127.0.0.1", 0), Handling)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def test_a_followed_log_is_asked_for_again_where_the_connection_has_died_in_silence(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.cli.jobs.logs.SILENT_S", 0.2)
    whole = b"one\ntwo\n"
    other = SilentServer(whole)
    try:
        result = run("jobs", "logs", "j_1", "-f", "--url", other.url)
    finally:
        other.stop()
    assert result.code == ExitCode.OK, result.err
    assert result.out.encode() == whole
    assert other.opened == 2
    assert "interrupted" not in result.err


def test_a_followed_log_goes_on_where_it_broke_off(
    run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.cli.jobs.logs.RECONNECT_S", 0.0)
    whole = b"one\ntwo\nthree\n"
    broken: list[bytes] = []

    class Handling(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if not path.endswith("/logs") or "lines=" in query:
                body = json.dumps(
                    {"id": "j_1", "status": "running", "attempt": 1, "ended": True, "size": len(whole)}
                ).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                return
            offset = int(query.partition("offset=")[2] or 0)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.send_header("X-Log-Attempt", "0")
            self.send_header("Content-Length", str(len(whole) - offset))
            self.end_headers()
            self.wfile.write(whole[offset : offset + 6])
            broken.append(whole[offset : offset + 6])
            self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    other = QuietServer(("127.0.0.1", 0), Handling)
    thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    result = run("jobs", "logs", "j_1", "-f", "--url", f"http://127.0.0.1:{other.server_port}")
    other.shutdown()
    other.server_close()
    thread.join()
    assert len(broken) == 3
    assert result.out.encode() == whole
    assert "resuming where it broke off" in result.err


def test_a_list_that_is_longer_than_the_terminal_says_so(
    ask: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.cli.remote.changes.RECONNECT_S", 0.0)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("LINES", "8")
    monkeypatch.setenv("TERM", "xterm")
    answers = iter([{"workers": [{"id": f"w_{n}", "name": f"gpu-{n}"} for n in range(20)]}])
    refused = problem(403, "forbidden", "This is over.")
    server.on("GET", "/api/events", Answer(200, b""))
    server.on("GET", "/api/admin/workers", lambda seen: next(answers, refused))
    shown = ask("workers", "list", "--watch")
    assert shown.code == ExitCode.AUTH
    at_first = shown.out.partition("w_19")[0]
    assert "..." in at_first
