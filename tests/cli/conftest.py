"""The command in this very process, against a small real HTTP server."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from simpletuner_fleet.cli.main import main
from simpletuner_fleet.protocol.problems import TYPE_PREFIX
from tests.quiet_server import QuietServer


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Seen(NamedTuple):
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: Any


class Answer(NamedTuple):
    status: int
    body: Any = None
    headers: Mapping[str, str] = MappingProxyType({})


class CutOff(Exception):
    """The server reads the request and hangs up without an answer."""


Handler = Callable[[Seen], Any]


class FakeServer:
    """Answers as told; remembers all it was asked."""

    def __init__(self) -> None:
        self.routes: dict[tuple[str, str], Any] = {}
        self.seen: list[Seen] = []
        self._server = QuietServer(("127.0.0.1", 0), self._handler())
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def on(self, method: str, path: str, answer: Any) -> None:
        """A document, an Answer, or a function of what was asked."""
        self.routes[method, path] = answer

    def asked(self, method: str, path: str) -> list[Seen]:
        return [seen for seen in self.seen if (seen.method, seen.path) == (method, path)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handling(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _any(self) -> None:
                address = urlsplit(self.path)
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                seen = Seen(
                    self.command,
                    address.path,
                    parse_qs(address.query),
                    {name.lower(): value for name, value in self.headers.items()},
                    json.loads(raw) if raw and "json" in self.headers["Content-Type"] else None,
                )
                fake.seen.append(seen)
                try:
                    self._send(fake.answer(seen), address.path)
                except CutOff:
                    self.close_connection = True

            def _send(self, answer: Answer, path: str) -> None:
                body = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                given = {name.lower(): value for name, value in answer.headers.items()}
                for name, value in {**usual_headers(answer.body, path), **given}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _any

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handling

    def answer(self, seen: Seen) -> Answer:
        known = self.routes.get((seen.method, seen.path))
        if known is None:
            return problem(404, "not_found", "There is no such thing here.")
        given = known(seen) if callable(known) else known
        return given if isinstance(given, Answer) else Answer(200, given)


def usual_headers(body: Any, path: str) -> dict[str, str]:
    """What an orchestrator says of such an answer, where a test says nothing else."""
    if not isinstance(body, bytes):
        return {"content-type": "application/json"}
    if path.endswith("/logs"):
        return {"content-type": "text/plain; charset=utf-8", "x-log-attempt": "0"}
    is_stream = path.endswith("/events")
    return {"content-type": "text/event-stream; charset=utf-8" if is_stream else "application/octet-stream"}


def problem(status: int, code: str, detail: str, **more: Any) -> Answer:
    body = {
        "type": TYPE_PREFIX + code,
        "title": "T",
        "status": status,
        "detail": detail,
        "code": code,
        **more,
    }
    return Answer(status, body, {"content-type": "application/problem+json"})


@pytest.fixture
def server() -> Iterator[FakeServer]:
    fake = FakeServer()
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing of the user who runs the tests gets in."""
    for name in list(os.environ):
        if name.startswith(("SIMPLETUNER_", "_SIMPLETUNER_", "SSL_CERT")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("SIMPLETUNER_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "data").mkdir()
    return tmp_path


Run = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> Result:
        capsys.readouterr()
        code = main(list(arguments))
        said = capsys.readouterr()
        return Result(code, said.out, said.err)

    return call


@pytest.fixture
def ask(run: Run, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Run:
    """`run` with a server and a token."""
    monkeypatch.setenv("SIMPLETUNER_URL", server.url)
    monkeypatch.setenv("SIMPLETUNER_API_TOKEN", "st_secret")
    return run
