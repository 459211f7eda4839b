"""Requests that are taken past the parser mean what the parser would have read."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.http.server.connection import HttpConnection
from simpletuner_fleet.http.server.http_exchange import HttpExchange
from simpletuner_fleet.http.server.repeated_head import RepeatedHead

HEADERS = b"Host: localhost\r\nX-Worker-Token: one\r\nContent-Type: application/json\r\n"
Seen = tuple[str, str, bytes, dict[str, str], bytes | None, bool]


def post(body: bytes = b"{}", path: bytes = b"/a/b", headers: bytes = HEADERS) -> bytes:
    return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (path, headers, len(body), body)


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.1", 1) if name == "peername" else default

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Owner:
    """Answers whatever is whole, and remembers what was asked."""

    date_line = b""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self._asked: list[HttpExchange] = []

    def now(self) -> float:
        return 0.0

    def admit(self, connection: HttpConnection) -> bool:
        return True

    def forget(self, connection: HttpConnection) -> None: ...

    def run(self, exchange: HttpExchange) -> None:
        self._asked.append(exchange)

    def answer(self) -> None:
        while self._asked and self._asked[0].whole:
            asked = self._asked.pop(0)
            head = (asked.method, asked.path, asked.query, asked.headers)
            self.seen.append((*head, asked.whole_body(), asked.keep_alive))
            asked.respond(b"HTTP/1.1 200 OK\r\n", b"")


def conversation(pieces: list[bytes]) -> tuple[list[Seen], bytes, bool]:
    owner, wire = Owner(), Wire()
    connection = HttpConnection(owner)
    connection.connection_made(wire)
    for piece in pieces:
        connection.data_received(piece)
        owner.answer()
    return owner.seen, wire.written, wire.closed


def learnt(request: bytes) -> RepeatedHead | None:
    owner = Owner()
    connection = HttpConnection(owner)
    connection.connection_made(Wire())
    connection.data_received(request)
    return connection._repeated


def test_the_second_request_is_read_without_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    owner, wire = Owner(), Wire()
    connection = HttpConnection(owner)
    connection.connection_made(wire)
    connection.data_received(post(b"first"))
    owner.answer()
    monkeypatch.setattr(connection, "_parser", object())  # it would fail on any use
    connection.data_received(post(b"another", b"/c?d=e"))
    owner.answer()
    method, path, query, headers, body, keep_alive = owner.seen[1]
    assert (method, path, query, body, keep_alive) == ("POST", "/c", b"d=e", b"another", True)
    assert headers == {
        "host": "localhost",
        "x-worker-token": "one",
        "content-type": "application/json",
        "content-length": "7",
    }


@pytest.mark.parametrize(
    "request_",
    [
        post(headers=HEADERS + b"Connection: close\r\n"),
        post(headers=HEADERS + b"Expect: 100-continue\r\n"),
        post(headers=HEADERS + b"Upgrade: websocket\r\n"),
        post(headers=HEADERS + b"Content-Length: 2\r\n"),
        b"POST / HTTP/1.1\r\nContent-Length: 2\r\nHost: localhost\r\n\r\n{}",
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        post() + post(),
        post() + b"POST /next HT",
        post()[:-1],
    ],
)
def test_nothing_is_learnt_from_a_request_that_has_a_say_in_how_it_is_read(request_: bytes) -> None:
    assert learnt(request_) is None


def test_another_token_is_never_taken_for_the_one_before() -> None:
    seen, _, _ = conversation([post(), post(headers=HEADERS.replace(b"one", b"two"))])
    assert [request[3]["x-worker-token"] for request in seen] == ["one", "two"]


def test_a_request_in_pieces_is_left_to_the_parser() -> None:
    second = post(b"0123456789")
    seen, _, closed = conversation([post(), second[:40], second[40:-3], second[-3:], post(b"third")])
    assert [request[4] for request in seen] == [b"{}", b"0123456789", b"third"]
    assert not closed


PIECES = st.sampled_from(
    [
        post(),
        post(b""),
        post(b"x" * 300, b"/x/y?z=1&w"),
        post(path=b"/%2e%2e/~a:b,c"),
        post(path=b"/a#b"),
        post(path=b"http://localhost/x"),
        post(headers=HEADERS.replace(b"one", b"two")),
        post(headers=HEADERS + b"Connection: close\r\n"),
        post(headers=HEADERS + b"Transfer-Encoding: chunked\r\n"),
        post().replace(b"POST", b"PATCH"),
        post().replace(b"POST", b"post"),
        post().replace(b"HTTP/1.1", b"HTTP/1.0"),
        post().replace(b"Content-Length: 2", b"Content-Length: +2"),
        post().replace(b"Content-Length: 2", b"Content-Length: 02"),
        post().replace(b"Content-Length: 2", b"Content-Length:  2"),
        post().replace(b"Content-Length: 2", b"Content-Length: 2 "),
        post().replace(b"Content-Length: 2", b"Content-Length: 1"),
        post().replace(b"Content-Length: 2", b"Content-Length: 3"),
        post().replace(b"Content-Length: 2", b"Content-Length: 2, 2"),
        post().replace(b"\r\n", b"\n"),
        b"\r\n" + post(),
        post() + b"\r\n",
        post() + post(b"sent ahead"),
        b"GET /get HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"{}",
    ]
)


@given(st.lists(PIECES, min_size=1, max_size=6))
def test_what_was_taken_past_the_parser_reads_as_the_parser_reads_it(pieces: list[bytes]) -> None:
    """Byte by byte no request is ever whole at once, so the parser reads them all."""
    by_bytes = [bytes([byte]) for piece in pieces for byte in piece]
    assert conversation(pieces) == conversation(by_bytes)
