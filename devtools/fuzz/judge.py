"""What may never happen, whatever is sent."""

import json
import logging
import re
from collections import Counter
from urllib.parse import quote

from msgspec import Struct, field

from devtools.fuzz.in_process_server import InProcessServer
from devtools.fuzz.line import LineAnswer
from devtools.fuzz.requests import Sent
from devtools.fuzz.scim import EVERYTHING, told_problems
from simpletuner_fleet.http.access.limits import address_key
from simpletuner_fleet.http.edge import scim_problems
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.ports import JobFilter, View
from simpletuner_fleet.protocol.problems import CONTENT_TYPE, read_problem
from simpletuner_fleet.sim.checks.checkers import (
    Problem,
    audit_problems,
    gpu_problems,
    index_problems,
    store_problems,
)

STATUS_LINE = re.compile(rb"HTTP/1\.1 (\d{3}) ")
ON_PURPOSE = ("store_unavailable", "storage_unavailable")
"""Codes of a 5xx that we say on purpose: try again later."""
OWN_FORMATS = (b"application/problem+json", b"text/html", b"application/scim+json")
SHOWN_BYTES = 1500
LOOKS = 5
ALWAYS_THERE = ("/health/ready", "/metrics", "/openapi.json", "/api/queue", "/api/jobs", "/api/admin/workers")
PAGES_OF_ALL = (
    "/",
    "/jobs",
    "/fleet",
    "/train",
    "/configs",
    "/admin/workers",
    "/admin/users",
    "/admin/tokens",
)


class Defect(Struct, frozen=True):
    kind: str
    what: str
    number: int
    """Which input, counted from the beginning of its server."""
    seed: int
    raw: bytes = b""

    def __str__(self) -> str:
        shown = self.raw if len(self.raw) <= SHOWN_BYTES else self.raw[:SHOWN_BYTES] + b"..."
        return f"seed {self.seed}, input {self.number} ({self.kind}): {self.what}\n    {shown!r}"


class LogWatch(logging.Handler):
    """Every line with a traceback: that is a defect of ours."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def attach(self) -> None:
        logging.getLogger().addHandler(self)

    def detach(self) -> None:
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or "Traceback" in record.getMessage():
            self.lines.append(self.format(record)[-3000:])

    def take(self) -> list[str]:
        lines, self.lines = self.lines, []
        return lines


class Tally(Struct):
    inputs: Counter[str] = field(default_factory=Counter)
    statuses: Counter[str] = field(default_factory=Counter)
    by_operation: Counter[str] = field(default_factory=Counter)
    servers: int = 0
    over_sockets: int = 0

    def add(self, other: "Tally") -> None:
        self.inputs += other.inputs
        self.statuses += other.statuses
        self.by_operation += other.by_operation
        self.servers += other.servers
        self.over_sockets += other.over_sockets

    def note(self, sent: Sent, status: int) -> None:
        self.statuses[f"{status}"] += 1
        if status < 300:
            self.by_operation[sent.name] += 1


def wrong_with(sent: Sent, answer: LineAnswer) -> str | None:
    """Says what is wrong with an answer to a whole request."""
    if answer.status >= 400 and sent.method == "HEAD":
        return f"answered {answer.status}" if answer.status >= 500 else None
    if answer.status >= 400 and answer.headers.get("content-type") == scim_problems.CONTENT_TYPE:
        return _wrong_with_scim(answer)
    problem = read_problem(answer.status, answer.body) if answer.status >= 400 else None
    if answer.status >= 500 and (problem is None or problem.code not in ON_PURPOSE):
        return f"answered {answer.status}: {answer.body[:300]!r}"
    kind = answer.headers.get("content-type", "")
    is_page = kind.startswith("text/html") and b"accept: text/html" in sent.raw
    if answer.status >= 400 and not is_page and (problem is None or kind != CONTENT_TYPE):
        return f"answered {answer.status} in no format of ours: {kind} {answer.body[:300]!r}"
    return None


def _wrong_with_scim(answer: LineAnswer) -> str | None:
    try:
        error = json.loads(answer.body)
    except ValueError:
        error = None
    whole = isinstance(error, dict) and error.get("schemas") == [scim_problems.ERROR_SCHEMA]
    if whole and error["status"] == str(answer.status) and answer.status in (*range(400, 500), 503):
        return None
    return f"answered {answer.status} by SCIM: {answer.body[:300]!r}"


def wrong_with_bytes(written: bytes) -> str | None:
    """Says what is wrong with all that was answered to what was no request, or several."""
    for status in STATUS_LINE.findall(written):
        if status >= b"500" and not any(code.encode() in written for code in ON_PURPOSE):
            return f"answered {status.decode()}: {written[:300]!r}"
        if status == b"400" and not any(form in written for form in OWN_FORMATS):
            return f"answered in a foreign format: {written[:300]!r}"
    return None if not written or written.startswith(b"HTTP/1.1 ") else f"answered no HTTP: {written[:300]!r}"


async def server_problems(server: InProcessServer) -> list[Problem]:
    """Every promise that can be read from the rows, the index beside them and the counts of what is open."""

    def look(view: View) -> list[Problem]:
        ids = [job.id for job in view.jobs_page(JobFilter(), None, EVERYTHING)]
        problems = store_problems(view, ids) + audit_problems(view.audit_range(0, EVERYTHING))
        return problems + gpu_problems(view.live_attempts()) + told_problems(view)

    await server.settle()
    problems = await server.store.read(look) + await _index_problems(server)
    for name in ("watching", "following", "searching"):
        still_open = getattr(server.deps, name)
        if still_open.by_caller or still_open.by_address[address_key("127.0.0.1")]:
            problems.append(("open", f"{name}: {still_open} though everybody has left"))
    return problems


async def _index_problems(server: InProcessServer) -> list[Problem]:
    """Rows are read in a thread, and a worker's stream may end meanwhile: only what stays wrong is wrong."""
    problems: list[Problem] = []
    for _ in range(LOOKS):
        problems = await server.store.read(lambda view: index_problems(server.index, view))
        if not problems:
            return []
        await server.settle()
    return problems


async def still_serves(server: InProcessServer) -> list[Problem]:
    """Asks for what everybody looks at: nothing that was stored may have spoiled it."""
    problems: list[Problem] = []
    jobs = [f"/jobs/{quote(str(one), safe='')}" for one in server.known["job"][-12:]]
    for path in (
        *ALWAYS_THERE,
        *PAGES_OF_ALL,
        *jobs,
        "/admin/audit",
        "/api/audit?limit=500",
        "/api/audit/verify",
    ):
        answer = await server.ask("GET", path, None, {**server.admin, "accept": "*/*"})
        if answer.status != 200 and not (path in jobs and answer.status == 404):
            problems.append(("serves", f"GET {path} answers {answer.status}: {answer.body[:300]!r}"))
    return problems


async def pass_time(server: InProcessServer, seconds: float, steps: int) -> None:
    for _ in range(steps):
        server.clock.at += seconds / steps
        await sweep_once(server.fleet)
