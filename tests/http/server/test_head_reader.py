"""Heads of many headers: repeated ones are joined in order, and none costs more than its size explains."""

import time

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Route
from simpletuner_fleet.http.server.head_reader import MAX_HEAD_BYTES, HeadReader
from tests.http.edge_kit import raw_exchange, running

MOST_CPU_S = 0.05
LINE = b"GET /headers HTTP/1.1\r\n"


class ReadHead(HeadReader):
    """Reads one head as a connection does."""

    taken: dict[str, str] | None = None

    def on_message_begin(self) -> None:
        self.begin_head()

    def on_headers_complete(self) -> None:
        self.taken = self.take_head()[2]


def read(head: bytes) -> dict[str, str] | None:
    """Returns the headers; None where the head is refused or does not end."""
    reader = ReadHead()
    try:
        httptools.HttpRequestParser(reader).feed_data(LINE + head)
    except httptools.HttpParserError:
        return None
    return reader.taken


async def headers(call: Call[None]) -> dict[str, str]:
    return dict(call.headers)


ROUTES = [Route("GET", "/headers", headers, PUBLIC)]
names = st.sampled_from(["accept", "Accept", "cookie", "X-One", "x-one", "x-two"])
values = st.text("abc,; ", max_size=10).map(str.strip)


@given(st.lists(st.tuples(names, values), max_size=30))
def test_repeated_headers_are_joined_in_their_order(fields: list[tuple[str, str]]) -> None:
    joined: dict[str, list[str]] = {}
    for name, value in fields:
        joined.setdefault(name.lower(), []).append(value)
    head = "".join(f"{name}: {value}\r\n" for name, value in fields).encode() + b"\r\n"
    assert read(head) == {name: ", ".join(texts) for name, texts in joined.items()}


def test_nothing_of_one_head_is_left_for_the_next() -> None:
    reader = ReadHead()
    parser = httptools.HttpRequestParser(reader)
    parser.feed_data(LINE + b"a: 1\r\na: 2\r\n\r\n")
    parser.feed_data(LINE + b"a: 3\r\n\r\n")
    assert reader.taken == {"a": "3"}


@pytest.mark.parametrize(
    "head",
    [
        b"a:\r\n" * 65_000,
        b"a: b\r\n" * 40_000,
        b"a:" + b"x" * 30_000 + b"\r\n" + b"a:\r\n" * 60_000,
        b"".join(b"%x:\r\n" % number for number in range(40_000)),
    ],
)
def test_a_head_of_very_many_headers_is_refused_soon(head: bytes) -> None:
    began = time.process_time()
    assert read(head + b"\r\n") is None
    assert time.process_time() - began < MOST_CPU_S


def test_the_largest_heads_of_one_repeated_header_are_read_soon() -> None:
    rest = MAX_HEAD_BYTES // 2
    began = time.process_time()
    for head in (b"a:\r\n" * 1900, b"a:" + b"x" * rest + b"\r\n" + b"a:\r\n" * 900):
        assert read(head + b"\r\n") is not None
    assert time.process_time() - began < MOST_CPU_S


async def test_a_head_of_too_many_headers_is_told_to_be_too_large() -> None:
    async with running(ROUTES) as here:
        answer = await raw_exchange(here.listening, LINE + b"a:\r\n" * 10_000 + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b'"head_too_large"' in answer
        nonsense = await raw_exchange(here.listening, LINE + b"no header\r\n\r\n")
        assert b'"unreadable_request"' in nonsense
