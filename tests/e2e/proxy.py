"""A TCP proxy with faults: what a bad network does, on request."""

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
TO_SERVER, TO_CLIENT = "to_server", "to_client"
REQUEST_LINE = re.compile(rb"^(?:GET|POST|PUT|PATCH|DELETE|HEAD) \S+ HTTP/1\.1\r$", re.MULTILINE)
UPLOAD = re.compile(rb"PUT \S+/objects/")
SETTLE_S = 0.2
RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Line:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, task: asyncio.Task[None], family: int) -> None:
        self.client = client
        self.server = socket.socket(family)
        self.server.setblocking(False)
        self.holding = False
        self.silenced = False
        self.last_request = b""
        self.passed = 0
        """Bytes to the client."""
        self.upload_left: int | None = None
        """Bytes to the server until it is cut; none if it carries no upload that will be."""
        self._task = task

    def reset(self) -> None:
        """Both ends see RST, not an orderly end."""
        for end in (self.client, self.server):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self._task.cancel()

    def end(self) -> None:
        """Orderly: what was sent arrives."""
        self._task.cancel()

    def close(self) -> None:
        self.client.close()
        self.server.close()


class Proxy:
    """Listens on a loopback port of its own in a thread of its own. Use it as a context manager."""

    def __init__(self, target: int | str) -> None:
        """`target` is a loopback port, or the path of a unix socket."""
        self._target = target if isinstance(target, str) else ("127.0.0.1", target)
        self._family = socket.AF_UNIX if isinstance(target, str) else socket.AF_INET
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._lines: set[_Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.socket()
        self._open = asyncio.Event()
        self._dropping: set[str] = set()
        self._delay_s = 0.0
        self._hold: tuple[bytes, Callable[[], None]] | None = None
        self._cut_after: int | None = None
        self._upload_cuts: list[int] = []
        self._own_answer: tuple[bytes, bytes] | None = None
        self.held = threading.Event()
        """Set once a reply was swallowed after the server had sent it."""
        self.port = 0
        self.requests: list[str] = []
        """The first line of everything that was asked."""

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

    def cut_uploads(self, byte_counts: list[int]) -> None:
        """Each of the next connections that upload an object is reset after so many bytes to the server."""
        self._call(lambda: setattr(self, "_upload_cuts", list(byte_counts)))

    def answer(self, request: bytes, status: int, body: bytes = b"<html>no</html>") -> None:
        """Requests with these bytes reach nobody: the proxy answers by itself, as any middle box may."""
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        self._call(lambda: setattr(self, "_own_answer", (request, head + body)))

    @property
    def upload_cuts_left(self) -> int:
        return len(self._upload_cuts)

    def silence(self, request: bytes) -> None:
        """Connections there are now that last asked for this bring the client nothing more; nobody is told."""
        self._call(lambda: self._silence(request))

    def heal(self) -> None:
        def healed() -> None:
            self._dropping.clear()
            self._delay_s, self._hold, self._cut_after, self._upload_cuts = 0.0, None, None, []
            self._own_answer = None
            self._open.set()

        self._call(healed)

    # In the loop's thread.

    def _silence(self, request: bytes) -> None:
        for line in self._lines:
            line.silenced = line.silenced or request in line.last_request

    def _reset_lines(self) -> None:
        for line in list(self._lines):
            line.reset()

    async def _start(self) -> None:
        self._open.set()
        self._listener.setblocking(False)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(128)
        self.port = self._listener.getsockname()[1]
        self._loop.add_reader(self._listener, self._accept)

    async def _stop(self) -> None:
        self._loop.remove_reader(self._listener)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionAbortedError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            task = self._loop.create_task(self._serve(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            # One that is cancelled before it began closes nothing by itself.
            task.add_done_callback(lambda _: client.close())

    async def _serve(self, client: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        line = _Line(client, task, self._family)
        self._lines.add(line)
        carriers: list[asyncio.Task[None]] = []
        try:
            await self._open.wait()
            await self._loop.sock_connect(line.server, self._target)
            carriers = [
                self._loop.create_task(self._carry(line, line.client, line.server, TO_SERVER)),
                self._loop.create_task(self._carry(line, line.server, line.client, TO_CLIENT)),
            ]
            await asyncio.gather(*carriers)
        except OSError:
            line.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        finally:
            for carrier in carriers:
                carrier.cancel()
            await asyncio.gather(*carriers, return_exceptions=True)
            self._lines.discard(line)
            line.close()

    async def _carry(self, line: _Line, source: socket.socket, sink: socket.socket, direction: str) -> None:
        while data := await self._loop.sock_recv(source, 65536):
            await self._open.wait()
            if self._delay_s:
                await asyncio.sleep(self._delay_s)
            if direction == TO_SERVER:
                line.last_request = data
                self.requests += [request_line.decode() for request_line in REQUEST_LINE.findall(data)]
                line.holding = line.holding or (self._hold is not None and self._hold[0] in data)
                if await self._was_answered(line, data) or await self._was_cut(line, data):
                    return
            elif line.holding:
                self._swallow(line)
                return
            if direction in self._dropping or (direction == TO_CLIENT and line.silenced):
                continue
            if direction == TO_CLIENT and self._cut_after is not None:
                line.passed += len(data)
                beyond = line.passed - self._cut_after
                if beyond > 0:
                    self._cut_after = None
                    await self._loop.sock_sendall(sink, data[: len(data) - beyond])
                    line.reset()
                    return
            await self._loop.sock_sendall(sink, data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    async def _was_answered(self, line: _Line, data: bytes) -> bool:
        if self._own_answer is None or self._own_answer[0] not in data:
            return False
        await self._loop.sock_sendall(line.client, self._own_answer[1])
        await asyncio.sleep(SETTLE_S)
        line.end()
        return True

    async def _was_cut(self, line: _Line, data: bytes) -> bool:
        if line.upload_left is None and self._upload_cuts and UPLOAD.match(data):
            line.upload_left = self._upload_cuts.pop(0)
        if line.upload_left is None:
            return False
        line.upload_left -= len(data)
        if line.upload_left >= 0:
            return False
        await self._loop.sock_sendall(line.server, data[: line.upload_left])
        # What a reset overtakes is lost: the server may have what went through before it.
        await asyncio.sleep(SETTLE_S)
        line.reset()
        return True

    def _swallow(self, line: _Line) -> None:
        assert self._hold is not None
        dropped_bytes = self._hold[1]
        self._hold = None
        line.reset()
        dropped_bytes()

    def _call(self, act: Callable[[], object]) -> None:
        async def run() -> None:
            act()

        self._run(run())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)
