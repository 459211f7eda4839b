"""TLS between a plain transport and what reads requests, with OpenSSL's own client at the other end."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.http.server import tls_connection
from simpletuner_fleet.http.server.tls import TlsFiles, private_authority, server_context
from simpletuner_fleet.http.server.tls_connection import TlsConnection

LARGE = bytes(range(256)) * 4096


class Wire(asyncio.Transport):
    """The plain transport beneath: it keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self.ended = ""
        self.calls: list[str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.ended
        self.sent += data

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def is_closing(self) -> bool:
        return bool(self.ended)

    def pause_reading(self) -> None:
        assert not self.ended
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("192.0.2.7", 4711) if name == "peername" else default


class Reader(asyncio.Protocol):
    """The protocol above: it keeps what it reads, and answers what it is told to."""

    def __init__(self, answer: Callable[["Reader", bytes], None] = lambda reader, data: None) -> None:
        self.transport: Any = None
        self.read = bytearray()
        self.calls: list[str] = []
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.calls.append("made")

    def data_received(self, data: bytes) -> None:
        self.read += data
        self._answer(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.calls.append("lost")

    def pause_writing(self) -> None:
        self.calls.append("pause")

    def resume_writing(self) -> None:
        self.calls.append("resume")


class Pair:
    """A connection with its reader above, its wire beneath, and a client at the wire's other end."""

    def __init__(self, files: TlsFiles, reader: Reader | None = None) -> None:
        self.reader, self.wire = reader or Reader(), Wire()
        self.made, self.handshakes_over = 0, 0
        self.connection = TlsConnection(server_context(files), self._make, self._count_handshake)
        self._to_client, self._to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=str(files.ca))
        self.client = context.wrap_bio(self._to_client, self._to_server, server_hostname="localhost")

    def _make(self) -> Reader:
        self.made += 1
        return self.reader

    def _count_handshake(self, connection: TlsConnection) -> None:
        assert connection is self.connection
        self.handshakes_over += 1

    def connect(self) -> None:
        self.connection.connection_made(self.wire)

    def complete_handshake(self, with_last: bytes = b"") -> None:
        """`with_last` is sent together with the last of the client's handshake."""
        self.connect()
        for _ in range(4):
            try:
                self.client.do_handshake()
            except ssl.SSLWantReadError:
                self.deliver()
            else:
                break
        if with_last:
            self.client.write(with_last)
        self.deliver()

    def deliver(self, piece: int = 1 << 20) -> None:
        """Carries what both have sent, the client's in pieces."""
        data = self._to_server.read()
        for at in range(0, len(data), piece):
            self.connection.data_received(data[at : at + piece])
        self._to_client.write(bytes(self.wire.sent))
        self.wire.sent.clear()

    def heard(self) -> bytes:
        """Returns what the client can read now."""
        self.deliver()
        pieces = bytearray()
        try:
            while piece := self.client.read(1 << 16):
                pieces += piece
        except ssl.SSLWantReadError:
            pass
        return bytes(pieces)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    folder: Path = tmp_path_factory.mktemp("authority")
    return private_authority(folder)


async def test_what_comes_with_the_last_of_the_handshake_is_read(files: TlsFiles) -> None:
    pair = Pair(files, Reader(lambda reader, data: reader.transport.write(b"answer to " + data)))
    pair.complete_handshake(with_last=b"request")
    assert pair.reader.read == b"request"
    assert pair.heard() == b"answer to request"
    assert (pair.made, pair.handshakes_over, pair.reader.calls) == (1, 1, ["made"])
    assert pair.reader.transport.get_extra_info("peername") == ("192.0.2.7", 4711)


@pytest.mark.parametrize("piece", [1, 17, 1 << 20])
async def test_much_arrives_whole_and_in_order_however_it_is_cut(files: TlsFiles, piece: int) -> None:
    sent = LARGE if piece > 1 else LARGE[:5000]
    pair = Pair(files)
    pair.complete_handshake()
    pair.client.write(sent)
    pair.deliver(piece)
    assert pair.reader.read == sent
    pair.reader.transport.write(sent)
    pair.reader.transport.write(b"")
    assert pair.heard() == sent


async def test_who_speaks_no_tls_is_told_and_left_and_nobody_above_hears_of_it(files: TlsFiles) -> None:
    pair = Pair(files)
    pair.connect()
    pair.connection.data_received(b"\x16\x03\x01\x00\x05hello")
    assert pair.wire.ended == "closed"
    assert pair.wire.sent[:1] == b"\x15"  # an alert
    pair.connection.data_received(b"more")
    pair.connection.connection_lost(None)
    assert (pair.made, pair.handshakes_over) == (0, 1)


async def test_who_is_silent_in_the_handshake_is_cut_off(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_connection, "HANDSHAKE_TIMEOUT_S", 0.05)
    slow, fast = Pair(files), Pair(files)
    slow.connect()
    fast.complete_handshake()
    await asyncio.sleep(0.2)
    assert (slow.wire.ended, fast.wire.ended) == ("aborted", "")


async def test_who_must_make_room_before_it_is_connected_is_cut_off_then(files: TlsFiles) -> None:
    pair = Pair(files)
    pair.connection.abort()
    pair.connect()
    assert pair.wire.ended == "aborted"


async def test_closing_says_so_and_sends_nothing_more(files: TlsFiles) -> None:
    pair = Pair(files)
    pair.complete_handshake()
    pair.reader.transport.write(b"last words")
    pair.reader.transport.close()
    pair.reader.transport.write(b"too late")
    pair.reader.transport.close()
    assert pair.wire.ended == "closed"
    assert pair.reader.transport.is_closing()
    assert pair.heard() == b"last words"
    pair.client.unwrap()  # waits for nothing: it has read our word
    pair.connection.connection_lost(None)
    assert pair.reader.calls == ["made", "lost"]


async def test_a_client_that_says_goodbye_is_closed(files: TlsFiles) -> None:
    pair = Pair(files)
    pair.complete_handshake()
    pair.client.write(b"the last")
    with pytest.raises(ssl.SSLWantReadError):
        pair.client.unwrap()
    pair.deliver()
    assert pair.reader.read == b"the last"
    assert pair.wire.ended == "closed"


async def test_what_was_changed_on_the_way_ends_the_connection(files: TlsFiles) -> None:
    pair = Pair(files)
    pair.complete_handshake()
    pair.client.write(b"secret")
    record = bytearray(pair._to_server.read())
    record[-1] ^= 1
    pair.connection.data_received(bytes(record))
    assert pair.reader.read == b""
    assert pair.wire.ended == "aborted"


async def test_pauses_go_through_both_ways(files: TlsFiles) -> None:
    pair = Pair(files)
    pair.connect()
    pair.connection.pause_writing()
    pair.connection.resume_writing()
    pair = Pair(files)
    pair.complete_handshake()
    pair.connection.pause_writing()
    pair.connection.resume_writing()
    pair.reader.transport.pause_reading()
    pair.reader.transport.resume_reading()
    assert pair.reader.calls == ["made", "pause", "resume"]
    assert pair.wire.calls == ["pause", "resume"]


async def test_a_connection_whose_other_side_has_left_counts_as_closing(files: TlsFiles) -> None:
    pair = Pair(files)
    pair.complete_handshake()
    assert not pair.reader.transport.is_closing()
    pair.wire.close()
    assert pair.reader.transport.is_closing()
    pair.connection.connection_lost(None)
    assert pair.reader.transport.is_closing()


async def test_a_reader_that_closes_at_once_reads_nothing(files: TlsFiles) -> None:
    class Refusing(Reader):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self.transport.abort()

    pair = Pair(files, Refusing())
    pair.complete_handshake(with_last=b"request")
    assert pair.reader.read == b""
    assert pair.wire.ended == "aborted"
