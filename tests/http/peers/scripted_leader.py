"""A leader whose every word is said by the test: what it answers, when it hangs up, and what it has seen."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from msgspec import Struct

from simpletuner_fleet.core.leadership import Lease
from tests.http.peers.peers_kit import TERM, Peer, served

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
HANG_UP = b""


class Request(Struct, frozen=True):
    connection: int
    """The number of the connection over which it came."""
    line: str
    body: bytes


class ScriptedLeader:
    def __init__(self) -> None:
        self.answer: Callable[[Request], bytes | None] = lambda request: OK
        """Returns what to say, `HANG_UP`, or None to say nothing at all."""
        self.seen: list[Request] = []
        self.writers: list[asyncio.StreamWriter] = []
        self.left: set[int] = set()
        """The connections whose other end was seen to be closed."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections(self) -> list[int]:
        """Returns over which connection each request came."""
        return [request.connection for request in self.seen]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.writers)
        self.writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await self._read(number, reader)
                self.seen.append(request)
                answer = self.answer(request)
                if answer == HANG_UP:
                    break
                writer.write(answer or b"")
        self.left.add(number)
        writer.close()

    async def _read(self, number: int, reader: asyncio.StreamReader) -> Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        line, *headers = head.split("\r\n")
        fields = dict(header.split(": ", 1) for header in headers if header)
        body = b""
        if "transfer-encoding" in fields:
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        elif "content-length" in fields:
            body = await reader.readexactly(int(fields["content-length"]))
        return Request(number, line.removesuffix(" HTTP/1.1"), body)


@asynccontextmanager
async def scripted_leader() -> AsyncIterator[ScriptedLeader]:
    leader = ScriptedLeader()
    server = await asyncio.start_server(leader.serve, "127.0.0.1", 0)
    leader.port = server.sockets[0].getsockname()[1]
    try:
        yield leader
    finally:
        server.close()
        for writer in leader.writers:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def follower_of(leader: ScriptedLeader) -> AsyncIterator[Peer]:
    async with served(Peer("follower")) as follower:
        follower.lease = Lease(term=TERM, holder="leader", url=leader.url)
        yield follower
