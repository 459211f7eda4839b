"""A cloud's API as a real HTTP server: what exists there and costs, and the quirks that real ones have."""

import json
import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tests.quiet_server import QuietServer
from tests.whole_run.leftovers import MARK

KEY = "vendor-key-0123456789"
PASSED_ON = ("PATH", "PYTHONPATH", "COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START", MARK)


class Reply:
    def __init__(self, status: int, document: Any = None, kind: str = "application/json") -> None:
        self.status = status
        self.kind = kind
        self.body = (
            b""
            if document is None
            else document
            if isinstance(document, bytes)
            else json.dumps(document).encode()
        )
        self.headers: dict[str, str] = {}


class VendorMachine:
    """A machine as it is, whatever a list says."""

    def __init__(self, id: str, name: str, dollars: float, environment: dict[str, str], command: str) -> None:
        self.id = id
        self.name = name
        self.dollars = dollars
        self.environment = environment
        self.command = command
        self.state = "running"
        self.made_at = time.monotonic()
        self.shown_from = 0.0
        self.shown_until: float | None = None
        self.ended_at: float | None = None
        self.own_key = f"own-{id}"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def costs(self) -> bool:
        return self.ended_at is None

    def is_shown(self) -> bool:
        now = time.monotonic()
        return self.shown_from <= now and (self.shown_until is None or now < self.shown_until)


class VendorServer(ABC):
    """Each kind of call can be given faults, which are met one after the other: see `_faulty`."""

    def __init__(self) -> None:
        self.machines: dict[str, VendorMachine] = {}
        self.faults: dict[str, deque[str]] = defaultdict(deque)
        self.calls: list[tuple[str, str]] = []
        self.bodies: list[tuple[str, Any]] = []
        self.keys: list[tuple[str, str]] = []
        self.cookies: list[str] = []
        """Those that came back: it sets one in each answer, named after the key that was shown."""
        self.lag_s = 0.0
        self.boots = False
        """Whether a machine starts its command as a process of this machine."""
        self.within = {one: os.environ[one] for one in PASSED_ON if one in os.environ}
        """The environment of every machine."""
        self.duds = 0
        """So many of the next machines never boot."""
        self.most_at_once = 0
        self.on_loss: Callable[[str, str], None] = lambda kind, fault: None
        """Told when a request or an answer is lost."""
        self.lock = threading.RLock()
        self._http = QuietServer(("127.0.0.1", 0), _handler_of(self))
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *why: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        for machine in self.machines.values():
            self.power_off(machine)

    # What a vendor fills in

    @abstractmethod
    def route(
        self, method: str, path: str, query: dict[str, str], body: Any, key: str
    ) -> tuple[str, Callable[[], Reply]] | None:
        """Returns the kind of a call, and what does it."""

    @abstractmethod
    def refusal(self, status: int, detail: str) -> Reply:
        """In the vendor's own words."""

    def environment_within(self, machine: VendorMachine) -> dict[str, str]:
        return {}

    # What all have

    def answer(self, method: str, path: str, query: dict[str, str], body: Any, key: str) -> Reply | None:
        """None: the connection is dropped."""
        with self.lock:
            met = self.route(method, path, query, body, key)
            if met is None:
                return self.refusal(404, f"there is no {path}")
            kind, act = met
            self.calls.append((kind, path))
            self.bodies.append((kind, body))
            self.keys.append((kind, key))
            owner = next((one for one in self.machines.values() if one.own_key == key), None)
            if key != KEY and (owner is None or kind != "destroy" or owner.id not in path):
                return self.refusal(401, "invalid api key")
            return self._faulty(kind, act)

    def _faulty(self, kind: str, act: Callable[[], Reply]) -> Reply | None:
        fault = self.faults[kind].popleft() if self.faults[kind] else ""
        if not fault:
            return act()
        if fault in ("lost answer", "500 after"):
            act()
        if fault in ("lost answer", "lost request"):
            self.on_loss(kind, fault)
            return None
        strange = self._strange_replies()
        return strange[fault] if fault in strange else self.refusal(int(fault), "it is said so")

    def _strange_replies(self) -> dict[str, Reply]:
        elsewhere, later = Reply(302), self.refusal(429, "too many requests")
        elsewhere.headers["location"] = f"{self.url}/elsewhere"
        later.headers["retry-after"] = "3600"
        return {
            "500 after": Reply(500, b"<html>oops</html>", "text/html"),
            "429 for an hour": later,
            "redirect": elsewhere,
            "huge": Reply(200, b" " * (9 * 1024 * 1024)),
            "not json": Reply(200, b"<html>a captive portal</html>", "text/html"),
            "another's 404": Reply(404, b"<html>nginx</html>", "text/html"),
        }

    def make(self, name: str, dollars: float, environment: dict[str, str], command: str) -> VendorMachine:
        machine = VendorMachine(self.new_id(), name, dollars, environment, command)
        machine.shown_from = time.monotonic() + self.lag_s
        self.machines[machine.id] = machine
        self.most_at_once = max(self.most_at_once, len(self.costing()))
        if self.duds:
            self.duds -= 1
        elif self.boots:
            machine.process = subprocess.Popen(
                ["sh", "-c", command],
                env={**self.within, **environment, **self.environment_within(machine)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        return machine

    def new_id(self) -> str:
        return str(1000 + len(self.machines))

    def end(self, id: str) -> bool:
        machine = self.machines.get(id)
        if machine is None or machine.ended_at is not None:
            return False
        machine.ended_at = time.monotonic()
        machine.shown_until = machine.ended_at + self.lag_s
        threading.Thread(target=self.power_off, args=(machine,), daemon=True).start()
        return True

    @staticmethod
    def power_off(machine: VendorMachine) -> None:
        if machine.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(machine.process.pid, signal.SIGKILL)
            machine.process.wait()

    def costing(self) -> list[VendorMachine]:
        return [one for one in self.machines.values() if one.costs]

    def count(self, kind: str) -> int:
        return sum(one == kind for one, _ in self.calls)


def _handler_of(vendor: VendorServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _meet(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            raw = self.rfile.read(int(self.headers.get("content-length") or 0))
            body = json.loads(raw) if raw else None
            key = (self.headers.get("authorization") or "").removeprefix("Bearer ")
            vendor.cookies += self.headers.get_all("cookie") or []
            reply = vendor.answer(self.command, parts.path, query, body, key)
            if reply is None:
                self.close_connection = True
                return
            self.send_response(reply.status)
            self.send_header("set-cookie", f"session={key}; Path=/")
            for name, value in {**reply.headers, "content-type": reply.kind}.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(reply.body)

        do_GET = do_POST = do_PUT = do_DELETE = _meet

        def log_message(self, *words: object) -> None:
            return

    return Handler
