"""A proxy between one worker and the orchestrator with the faults of bad lines and of boxes that answer for others."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

from devtools.ports import free_port

REQUEST_BEGINNINGS = (b"GET ", b"POST ", b"PUT ")
SLOW_S = 0.3


class Mischief(StrEnum):
    """What is done to a call that fits."""

    ANSWER = "answer"
    """It reaches nobody: the proxy answers by itself."""
    SWALLOW = "swallow"
    """It is carried out, and its answer never arrives."""
    TRUNCATE = "truncate"
    """Its answer ends in the middle."""
    TELL = "tell"
    """Somebody is told as soon as it was passed on."""


class Rule(NamedTuple):
    fits: bytes
    """In the first line of the request."""
    what: Mischief
    answer: bytes = b""
    tell: Callable[[], Awaitable[None]] | None = None


class Line:
    """One connection through the proxy."""

    def __init__(self) -> None:
        self.swallows = False
        self.truncates = False


class Proxy:
    def __init__(self, target_port: int, host: str = "127.0.0.1") -> None:
        self._target_port = target_port
        self.host = host
        self._to_server, self._to_client = asyncio.Event(), asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._delay_s = 0.0
        self.rule: Rule | None = None
        self.port = free_port(host)
        self.heal()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, self.port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.drop()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def drop(self) -> None:
        """Ends every connection there is; new ones are served."""
        for connection in self._connections:
            connection.cancel()

    def cut(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Lets nothing pass and closes nothing: neither end is told."""
        if to_server:
            self._to_server.clear()
        if to_client:
            self._to_client.clear()

    def slow_down(self) -> None:
        self._delay_s = SLOW_S

    def heal(self) -> None:
        self._to_server.set()
        self._to_client.set()
        self._delay_s = 0.0
        self.rule = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        upstream: asyncio.StreamWriter | None = None
        line = Line()
        try:
            await self._to_server.wait()
            from_server, upstream = await asyncio.open_connection("127.0.0.1", self._target_port)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy_to_server(line, reader, upstream, writer))
                tasks.create_task(self._copy_to_client(line, from_server, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(connection)
            for end in (writer, upstream):
                if end is not None:
                    end.transport.abort()

    async def _copy_to_server(
        self,
        line: Line,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
    ) -> None:
        while data := await reader.read(65536):
            await self._pass(self._to_server)
            rule = self._fitting(data)
            if rule and rule.what is Mischief.ANSWER:
                back.write(rule.answer)
                await back.drain()
                raise ConnectionAbortedError
            if rule:
                line.swallows = rule.what is Mischief.SWALLOW
                line.truncates = rule.what is Mischief.TRUNCATE
            writer.write(data)
            await writer.drain()
            if rule and rule.tell:
                self.rule = None
                await rule.tell()
        with suppress(OSError, RuntimeError):
            writer.write_eof()

    async def _copy_to_client(
        self, line: Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(65536):
            await self._pass(self._to_client)
            if line.swallows:
                raise ConnectionAbortedError
            if line.truncates:
                writer.write(data[: len(data) // 2])
                await writer.drain()
                raise ConnectionAbortedError
            writer.write(data)
            await writer.drain()
        with suppress(OSError, RuntimeError):
            writer.write_eof()

    async def _pass(self, gate: asyncio.Event) -> None:
        await gate.wait()
        if self._delay_s:
            await asyncio.sleep(self._delay_s)

    def _fitting(self, data: bytes) -> Rule | None:
        if self.rule is None or not data.startswith(REQUEST_BEGINNINGS):
            return None
        first, _, _ = data.partition(b"\r\n")
        return self.rule if self.rule.fits in first else None
