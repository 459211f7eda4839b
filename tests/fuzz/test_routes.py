"""Every row of the route table, with what nobody should send: never a fault of ours, always a problem one can read."""

import asyncio
import json
from itertools import chain, repeat
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from simpletuner_fleet.http.application import ROUTES
from simpletuner_fleet.http.edge.routes import Access, Route
from tests.fuzz.near_schema import garbage, near, texts
from tests.fuzz.server_kit import ADMIN, RunningServer, in_path

FEW, MORE = 4, 8
STORMS = 3
quick = settings(
    max_examples=3 * STORMS,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
Message = tuple[list[str], Any, dict[str, str]]
"""What stands in its path, its body, and its query."""
IDS = ("$job", "$worker", "$config", "$token", "$epoch")
"""Stand for what exists in the server the message is sent to."""
known = st.sampled_from(IDS)

TRAVERSALS = (
    "..",
    ".",
    "%2e%2e",
    "..%2f..%2fetc%2fpasswd",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "..%252f..%252fetc%252fpasswd",
    "....//....//etc/passwd",
    "..\\..\\windows\\win.ini",
    "..%5c..%5cwindows%5cwin.ini",
    "%c0%ae%c0%ae%c0%af",
    "%uff0e%uff0e%u2215",
    "\uff0e\uff0e\u2215etc",
    "..;/..;/etc/passwd",
    "a;b=c",
    "%00",
    "j_1%00.json",
    "%0d%0aSet-Cookie:%20a=b",
    "%ff",
    "CON",
    "nul.txt",
    "file:%2f%2f%2fetc%2fpasswd",
    "%20",
    "~root",
    "$HOME",
    "a" * 201,
    "a" * 5000,
    "%e2%80%ae",
    "{id}",
    "*",
    "",
)
HEADERS: tuple[dict[str, str], ...] = (
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": f"bearer  {ADMIN} "},
    {"authorization": "Basic YTpi"},
    {"authorization": "Bearer " + "A" * 20_000},
    {"authorization": "Bearer \xff\xfe\x00"},
    {"authorization": f"Bearer {ADMIN}", "x-api-key": "another"},
    {"x-worker-token": "wt_\x00"},
    {"x-worker-token": ADMIN},
    {"x-upload-token": "../../x"},
    {"content-length": "-1"},
    {"content-length": "99999999999999999999"},
    {"content-length": "abc"},
    {"content-type": "text/plain"},
    {"content-type": "application/json; charset=utf-16"},
    {"content-type": "\xff"},
    {"content-encoding": "gzip"},
    {"transfer-encoding": "chunked, identity"},
    {"host": ""},
    {"host": "evil.example"},
    {"host": "127.0.0.1:8001@evil.example"},
    {"host": "[::1"},
    {"host": "127.0.0.1:99999999"},
    {"origin": "null"},
    {"origin": "http://evil.example"},
    {"origin": "\x00"},
    {"sec-fetch-site": "cross-site"},
    {"x-forwarded-for": "'; --"},
    {"x-forwarded-for": "1.2.3.4, " * 1000},
    {"x-forwarded-proto": "gopher"},
    {"last-event-id": "-1"},
    {"last-event-id": "9" * 400},
    {"last-event-id": "\xff\n"},
    {"idempotency-key": ""},
    {"idempotency-key": "k" * 10_000},
    {"idempotency-key": "\x7f\x80"},
    {"accept": "*" * 5000},
    {"cookie": "=;" * 2000},
    {"cookie": "simpletuner_session=" + "A" * 5000},
    {"cookie": "simpletuner_session=\xff; __Host-simpletuner_session=ss_"},
    {"range": "bytes=-1-99999999999999999999"},
    {"expect": "100-continue"},
    {"upgrade": "websocket", "connection": "upgrade"},
)


class Furnished:
    """A server with a worker that runs a job, another job that waits, and a config."""

    def __init__(self) -> None:
        self.server = RunningServer()
        self.known: dict[str, Any] = {}
        self.worker_token = ""

    async def open(self) -> "Furnished":
        await self.server.open()
        worker = await self.server.worker("gpu-1")
        self.worker_token = worker.token
        job_id = await self.server.submit()
        offers = await worker.offers()
        await worker.accept(offers[0])
        await self.server.submit()
        await self.server.as_admin("PUT", "/api/configs/c", {"settings": {"a": 1}})
        self.known = {
            "$job": job_id,
            "$worker": worker.id,
            "$config": "c",
            "$token": "t_admin",
            "$epoch": offers[0]["epoch"],
        }
        return self

    def fill(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.known.get(value, value)
        if isinstance(value, list):
            return [self.fill(one) for one in value]
        if isinstance(value, dict):
            return {str(self.fill(name)): self.fill(one) for name, one in value.items()}
        return value

    def credential(self, row: Route) -> dict[str, str]:
        if row.permission in (Access.WORKER, Access.UPLOAD):
            return {"x-worker-token": self.worker_token}
        return {"authorization": f"Bearer {ADMIN}"}


def name_of(row: Route) -> str:
    return f"{row.method} {row.path}"


def with_parameters(path: str, values: list[str]) -> str:
    left = chain(values, repeat(values[-1]))
    return "/".join(next(left) if part.startswith("{") else part for part in path.split("/"))


def must_be_readable(answer: Any, row: Route, what: object) -> None:
    assert answer.status < 500, (name_of(row), what, answer)
    if answer.status >= 400 and row.scim:
        assert answer.headers["content-type"] == "application/scim+json", (name_of(row), answer)
        assert answer.json()["status"] == str(answer.status)
    elif answer.status >= 400:
        assert answer.headers["content-type"] == "application/problem+json", (name_of(row), answer)
        problem = answer.json()
        assert problem["status"] == answer.status
        assert problem["code"]


@pytest.mark.parametrize("row", ROUTES, ids=name_of)
def test_nothing_that_can_be_sent_is_a_fault_of_the_server(row: Route) -> None:
    body = near(row.body, known) if row.body not in (None, bytes) else garbage
    query = st.dictionaries(st.sampled_from(query_names(row)) | texts, texts | known, max_size=3)
    part = st.one_of(known, known, known, texts)
    message = st.tuples(st.lists(part, min_size=2, max_size=2), body, query)
    drawn: list[Message] = []

    # A few at a time: a whole storm of large bodies is mostly more than Hypothesis takes, and would be thrown away.
    @quick
    @given(st.lists(message, min_size=FEW, max_size=MORE))
    def draw(messages: list[Message]) -> None:
        drawn.extend(messages)

    draw()
    for storm in range(STORMS):
        asyncio.run(send_all(row, drawn[storm::STORMS]))


async def send_all(row: Route, messages: list[Message]) -> None:
    furnished = await Furnished().open()
    for parts, body, query in messages:
        path = with_parameters(row.path, [in_path(safe(furnished.fill(part))) for part in parts])
        asked = "&".join(f"{in_path(safe(n))}={in_path(safe(furnished.fill(v)))}" for n, v in query.items())
        raw = json.dumps(furnished.fill(body)).encode()
        answer = await furnished.server.ask(
            row.method, path, raw=raw, headers=furnished.credential(row), query=asked.encode()
        )
        must_be_readable(answer, row, (path, raw[:500], asked))


def query_names(row: Route) -> list[str]:
    return list(row.query.__struct_fields__) if row.query else ["limit"]


def safe(text: Any) -> str:
    return str(text).encode("utf-8", "replace").decode()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"123",
        b"\xff\xfe\x00",
        b'{"a":"\xff"}',
        b'{"name":"\\ud800"}',
        b'{"name":"\\u0000"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"{" + b'"a":1,' * 30_000 + b'"a":1}',
        b'{"a":' + b"9" * 100_000 + b"}",
        b'{"a":1e999}',
        b'{"a":NaN}',
        b'{"a":-0.0}',
        b'\xef\xbb\xbf{"a":1}',
        b"A" * (300 * 1024),
        b"B" * (40 * 1024 * 1024),
    ],
    ids=lambda raw: f"{raw[:12]!r}x{len(raw)}",
)
def test_broken_bodies_are_told_as_such_on_every_row(raw: bytes) -> None:
    async def story() -> None:
        furnished = await Furnished().open()
        for row in ROUTES:
            if row.body is None:
                continue
            values = [str(furnished.known["$job"])] * 2
            path = with_parameters(row.path, values)
            answer = await furnished.server.ask(row.method, path, raw=raw, headers=furnished.credential(row))
            must_be_readable(answer, row, raw[:20])

    asyncio.run(story())


def test_no_path_parameter_leads_anywhere_but_to_a_name() -> None:
    async def story() -> None:
        furnished = await Furnished().open()
        for row in ROUTES:
            if "{" not in row.path or row.method == "PUT":
                continue
            for payload in TRAVERSALS:
                path = with_parameters(row.path, [payload, payload])
                answer = await furnished.server.ask(row.method, path, {}, headers=furnished.credential(row))
                must_be_readable(answer, row, payload)
                assert answer.status >= 400, (name_of(row), payload, answer)
                assert b"root:" not in answer.body

    asyncio.run(story())


def test_a_config_is_never_kept_under_a_name_that_is_a_path() -> None:
    async def story() -> None:
        furnished = await Furnished().open()
        for payload in TRAVERSALS:
            answer = await furnished.server.ask(
                "PUT",
                f"/api/configs/{payload}",
                {"settings": {}},
                headers={"authorization": f"Bearer {ADMIN}"},
            )
            assert answer.status < 500, (payload, answer)
        for kept in (await furnished.server.as_admin("GET", "/api/configs"))["configs"]:
            name = kept["name"]
            assert name.isprintable()
            assert not set(name) & set("/\\%;{}*$~ "), name
            assert ".." not in name

    asyncio.run(story())


def test_no_header_is_a_fault_of_the_server() -> None:
    async def story() -> None:
        furnished = await Furnished().open()
        for row in ROUTES:
            path = with_parameters(row.path, [str(furnished.known["$job"])] * 2)
            for headers in HEADERS:
                answer = await furnished.server.ask(
                    row.method, path, {}, headers={**furnished.credential(row), **headers}
                )
                must_be_readable(answer, row, headers)

    asyncio.run(story())
