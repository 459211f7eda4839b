"""A TCP proxy with faults: what a bad network does, on request."""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
TO_SERVER, TO_CLIENT = "to_server", "to_client"


class _Line:
    """One connection through the proxy."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.holding = False
        self.passed = {TO_SERVER: 0, TO_CLIENT: 0}

    def reset(self) -> None:
        """Both ends see RST, not an orderly end."""
        for writer in (self.client, self.server):
            raw = writer.get_extra_info("socket")
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()


class Proxy:
    """Listens on a loopback port of its own in a thread of its own. Use it as a context manager."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._open = asyncio.Event()
        self._dropping: set[str] = set()
        self._delay_s = 0.0
        self._hold: tuple[bytes, Callable[[], None]] | None = None
        self._cut_after: int | None = None
        self.held = threading.Event()
        """Set once a reply was swallowed after the server had sent it."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> "Proxy":
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # Faults. Each holds until `heal`.

    def delay(self, seconds: float) -> None:
        """Every piece of data takes this much longer, both ways."""
        self._call(lambda: setattr(self, "_delay_s", seconds))

    def drop(self, direction: str) -> None:
        """Data in this direction vanishes; nobody is told."""
        self._call(lambda: self._dropping.add(direction))

    def stall(self) -> None:
        """Nothing goes through and nothing is closed: no FIN, no RST. New connections hang as well."""
        self._call(self._open.clear)

    def reset(self) -> None:
        """Every connection there is ends with RST; new ones are served."""
        self._call(self._reset_lines)

    def hold_reply(self, request: bytes) -> None:
        """The next request with these bytes reaches the server; its answer does not reach the client."""
        self.held.clear()
        self._call(lambda: setattr(self, "_hold", (request, self.held.set)))

    def cut_after(self, byte_count: int) -> None:
        """The next connection that gets more than this from the server is reset there."""
        self._call(lambda: setattr(self, "_cut_after", byte_count))

    def heal(self) -> None:
        def healed() -> None:
            self._dropping.clear()
            self._delay_s, self._hold, self._cut_after = 0.0, None, None
            self._open.set()

        self._call(healed)

    # In the loop's thread.

    def _reset_lines(self) -> None:
        for line in list(self._lines):
            line.reset()

    async def _start(self) -> None:
        self._open.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._reset_lines()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._open.wait()
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._target_port)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            self._tasks.discard(task)
            return
        line = _Line(writer, upstream)
        self._lines.add(line)
        try:
            await asyncio.gather(
                self._carry(line, reader, upstream, TO_SERVER),
                self._carry(line, upstream_reader, writer, TO_CLIENT),
            )
        except (OSError, asyncio.CancelledError):
            line.reset()
        finally:
            self._lines.discard(line)
            self._tasks.discard(task)

    async def _carry(
        self, line: _Line, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str
    ) -> None:
        while data := await reader.read(65536):
            await self._open.wait()
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            if direction in self._dropping:
                continue
            if direction == TO_SERVER and self._hold and self._hold[0] in data:
                line.holding = True
            if direction == TO_CLIENT and line.holding:
                self._swallow(line)
                return
            line.passed[direction] += len(data)
            if direction == TO_CLIENT and self._cut_after is not None:
                beyond = line.passed[TO_CLIENT] - self._cut_after
                if beyond > 0:
                    self._cut_after = None
                    writer.write(data[: len(data) - beyond])
                    await writer.drain()
                    line.reset()
                    return
            writer.write(data)
            await writer.drain()
        with suppress(OSError, RuntimeError):
            writer.write_eof()

    def _swallow(self, line: _Line) -> None:
        assert self._hold is not None
        told = self._hold[1]
        self._hold = None
        line.reset()
        told()

    def _call(self, act: Callable[[], object]) -> None:
        async def run() -> None:
            act()

        self._run(run())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
