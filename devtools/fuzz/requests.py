"""What is sent to the server: requests that are almost right, of every kind that there is."""

import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from devtools.fuzz.cast import PEOPLE
from devtools.fuzz.chance import Chance
from devtools.fuzz.document import NearSchema, Operation
from devtools.fuzz.in_process_server import Headers, request_bytes
from devtools.fuzz.scim import BASE, ScimValues
from simpletuner_fleet.http.edge.routes import Route
from simpletuner_fleet.protocol.messages import LOG_AGES_HEADER

HEADER_NAMES = (
    *("authorization", "x-api-key", "x-worker-token", "x-upload-token", "cookie", "origin", "sec-fetch-site"),
    *("host", "content-type", "content-encoding", "accept", "accept-language", "accept-encoding", "range"),
    *(
        "if-none-match",
        "if-match",
        "if-modified-since",
        "last-event-id",
        "idempotency-key",
        "expect",
        "upgrade",
    ),
    *(
        "x-forwarded-for",
        "x-forwarded-proto",
        "forwarded",
        "via",
        "connection",
        "te",
        "trailer",
        "user-agent",
    ),
    *("x-http-method-override", "content-disposition", LOG_AGES_HEADER.lower()),
)
HEADER_VALUES = (
    *("", "*", "-1", "0", "9" * 400, "null", "bytes=0-", "bytes=-1", "bytes=5-2", "bytes=0-9" + "9" * 30),
    *(
        "bytes=0-1,3-4",
        "gzip",
        "chunked",
        "close",
        "keep-alive, upgrade",
        "websocket",
        "trailers",
        "text/html",
    ),
    *("application/json; charset=utf-16", "de;q=9,zh-Hant;q=-1,*;q=nan", "1.2.3.4, 5.6.7.8", "same-origin"),
    *(
        "cross-site",
        "https",
        "evil.example",
        "127.0.0.1:99999",
        "\xff\xfe",
        "a" * 4000,
        "=;" * 200,
        "100-continue",
    ),
    *("simpletuner_session=x", "Bearer", "Basic YTpi", '"etag"', "W/", "Thu, 99 Foo 2026 99:99:99 GMT"),
)
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND")
KINDS = ("api", "scim", "worker", "log", "upload", "stream", "page", "bytes")
STREAM_PATHS = ("/api/events", "/api/workers/stream")
RARE = "/logs/search"
"""Each of these is a process of its own."""


class Sent(Struct, frozen=True):
    kind: str
    name: str
    """What of the server it was for."""
    method: str
    raw: bytes
    whole: bool = True
    """It is a request, which is owed an answer."""

    @property
    def endless(self) -> bool:
        """Its answer may have no end: a log that is followed."""
        return b"follow=" in self.raw


class Requests:
    """One stream of inputs, for one server."""

    def __init__(
        self,
        near: NearSchema,
        operations: list[Operation],
        pages: list[Route],
        callers: dict[str, Headers],
        chance: Chance,
        only: str = "",
    ) -> None:
        """`only` is the one kind that is sent; empty: all."""
        self._only = only
        self._near, self._chance, self._callers = near, chance, callers
        self._pages = pages
        raw = [one for one in operations if one.raw_body]
        self._logs = [one for one in operations if one.path.endswith("/logs") and one.worker]
        self._uploads = [one for one in raw if one not in self._logs]
        self._uploads += [one for one in operations if one.path.endswith(("/manifests", "/objects", "/data"))]
        self._workers = [one for one in operations if one.worker and one not in raw]
        self._streams = [one for one in operations if one.path in STREAM_PATHS or one.path.endswith("/logs")]
        self._people = [one for one in operations if not one.worker]
        self._scim = [one for one in operations if one.path.startswith(BASE)]
        self._scim += [one for one in self._scim if one.method in ("POST", "PUT", "PATCH")] * 2
        self._scim_values = ScimValues(near.known, chance)

    def next(self) -> Sent:
        self._near.sane = self._chance.happens(2.5)
        kinds: dict[str, tuple[float, Callable[[str], Sent]]] = {
            "api": (34, lambda kind: self._of_operation(kind, self._chance.choice(self._people))),
            "scim": (8, lambda kind: self._of_operation(kind, self._chance.choice(self._scim))),
            "worker": (18, lambda kind: self._of_operation(kind, self._chance.choice(self._workers))),
            "log": (10, lambda kind: self._of_operation(kind, self._chance.choice(self._logs))),
            "upload": (10, lambda kind: self._of_operation(kind, self._chance.choice(self._uploads))),
            "stream": (6, lambda kind: self._of_operation(kind, self._chance.choice(self._streams))),
            "page": (4, self._page),
            "bytes": (10, self._bytes),
        }
        drawn = self._chance.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        kind = self._only or drawn
        made = kinds[kind][1](kind)
        return self.next() if RARE in made.name and not self._chance.happens(30) else made

    def _of_operation(self, kind: str, operation: Operation) -> Sent:
        chance = self._chance
        method = chance.choice(METHODS) if chance.happens(60) else operation.method
        headers = {**self._caller(operation), **self._headers(kind)}
        if operation.raw_body and not chance.happens(20):
            headers["content-type"] = "application/octet-stream"
        path = operation.path
        body = self._body(operation)
        query: dict[str, Any] = {}
        for parameter in operation.parameters:
            name = parameter["name"]
            if parameter["in"] == "path":
                part = self._near.path_part(operation.path, name)
                if name == "sha256" and body and operation.raw_body and chance.happens(2):
                    part = hashlib.sha256(body).hexdigest()
                path = path.replace("{" + name + "}", escaped(part))
            elif parameter["required"] or chance.happens(2):
                query[name] = self._near.value(parameter["schema"], name)
                if name == "size" and chance.happens(2):
                    query[name] = len(body)
                if name == "offset" and chance.happens(2):
                    query[name] = 0
        if kind == "scim" and operation.method == "GET":
            query = self._scim_values.query()
        return Sent(
            kind, operation.name, method, request_bytes(method, path + self._query(query), body, headers)
        )

    def _body(self, operation: Operation) -> bytes:
        chance = self._chance
        if operation.raw_body:
            return chance.choice(
                (b"", chance.randbytes(chance.randrange(200)), b"step 1 loss 0.5\r\n" * chance.randrange(400))
            )
        if operation.body is None:
            return b"" if not chance.happens(30) else chance.encoded(chance.garbage())
        if operation in self._scim:
            return chance.encoded(self._scim_values.body(operation))
        return chance.encoded(self._near.value(operation.body))

    def _query(self, query: dict[str, Any]) -> str:
        pairs = [
            (name, one)
            for name, value in query.items()
            for one in (value if isinstance(value, list) else [value])
        ]
        if self._chance.happens(20):
            pairs.append((self._chance.text(), self._chance.text()))
        return "?" + "&".join(f"{escaped(name)}={escaped(value)}" for name, value in pairs) if pairs else ""

    def _caller(self, operation: Operation) -> Headers:
        """Mostly one whom the operation is for."""
        chance, callers = self._chance, self._callers
        if chance.happens(10):
            return chance.choice(list(callers.values()))
        if operation.worker:
            named = ["gpu", "gpu", "other"] + (
                ["own attempt"] * 3 + ["other attempt"] if operation.upload else []
            )
        else:
            named = ["admin"] if operation in self._scim else ["admin", "admin", *PEOPLE]
        return callers.get(chance.choice(named), {})

    def _headers(self, kind: str) -> Headers:
        chance = self._chance
        headers = {}
        if kind == "stream":
            headers["last-event-id"] = header_text(
                chance.choice((str(chance.number()), chance.text(), "9" * 5000))
            )
        if kind == "log" and chance.happens(2):
            marks = (
                f"{chance.choice((0, 1, 5, 9, 10**30))}:{chance.number()}" for _ in range(chance.randrange(5))
            )
            headers[LOG_AGES_HEADER.lower()] = header_text(",".join(marks))
        while not self._near.sane and chance.happens(5):
            value = chance.choice(HEADER_VALUES) if chance.happens(1.3) else header_text(chance.text())
            headers[chance.choice(HEADER_NAMES)] = value
        return headers

    def _page(self, kind: str) -> Sent:
        chance = self._chance
        row = chance.choice(self._pages)
        path = row.path
        for name in [part[1:-1] for part in row.path.split("/") if part.startswith("{")]:
            path = path.replace("{" + name + "}", escaped(self._near.path_part(row.path, name)))
        fields = list(row.query.__struct_fields__) if row.query else []
        query = {name: chance.scalar() for name in fields if chance.happens(2)}
        headers = {**self._callers[chance.choice(PEOPLE)], **self._headers(kind)}
        if chance.happens(1.5):
            headers["accept"] = "text/html"
        body = chance.encoded(self._near.value({"type": "object"})) if row.body else b""
        return Sent(
            kind,
            f"{row.method} {row.path}",
            row.method,
            request_bytes(row.method, path + self._query(query), body, headers),
        )

    def _bytes(self, kind: str) -> Sent:
        """Not a request any more: a good one, spoiled anywhere, or several of them in one go."""
        chance = self._chance
        good = self._of_operation(kind, chance.choice(self._people + self._workers))
        raw = good.raw
        match chance.randrange(5):
            case 0:
                raw = b"".join(
                    chance.choice((raw, chance.mangled(raw))) for _ in range(chance.randrange(1, 5))
                )
            case 1:
                head, _, body = raw.partition(b"\r\n\r\n")
                chunks = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in chance.cut(body) if one)
                ending = chance.choice(
                    (
                        b"0\r\n\r\n",
                        b"0\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n",
                        b"-1\r\n",
                        b"ffffffffffffffffff\r\n",
                        b"",
                    )
                )
                raw = (
                    head.replace(b"content-length", b"transfer-encoding: chunked\r\nx-length")
                    + b"\r\n\r\n"
                    + chunks
                    + ending
                )
            case 2:
                raw = chance.mangled(raw)
            case 3:
                at = raw.find(b"\r\n") + 2
                raw = (
                    raw[:at]
                    + chance.choice(
                        (
                            b"a: b\r\n" * 300,
                            b"content-length: 1\r\n",
                            b": \r\n",
                            b" x\r\n",
                            b"a\0: b\r\n",
                            b"x" * 70_000,
                        )
                    )
                    + raw[at:]
                )
            case 4:
                raw = chance.randbytes(chance.randrange(1, 400))
        return Sent(kind, good.name, good.method, raw, whole=False)


def escaped(value: object) -> str:
    text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return quote(text.encode("utf-8", "replace"), safe="")


def header_text(text: str) -> str:
    return "".join(char for char in text if char.isprintable() and ord(char) < 256).strip()
