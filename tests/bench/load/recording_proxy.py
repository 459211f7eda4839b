"""A proxy on loopback that notes every request on its way."""

import asyncio
import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

END_OF_HEAD = b"\r\n\r\n"
ID = re.compile(r"\b[jw]_\w+")
INCARNATION = re.compile(r"incarnation=[\w.]+")


class Request(NamedTuple):
    """A request without what differs from one worker to another."""

    line: str
    headers: tuple[str, ...]
    body: Any


class RecordingProxy:
    def __init__(self, port: int) -> None:
        self._target = port
        self._streams: list[bytearray] = []
        self._stop: Callable[[], object] = lambda: None
        self._ready = threading.Event()
        self.port = 0

    def requests(self) -> list[Request]:
        return [request for stream in self._streams for request in _requests(bytes(stream))]

    def start(self) -> threading.Thread:
        thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        thread.start()
        self._ready.wait()
        return thread

    def stop(self) -> None:
        self._stop()

    async def _serve(self) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        self._stop = partial(loop.call_soon_threadsafe, stopped.set)
        async with await asyncio.start_server(self._connected, "127.0.0.1", 0) as server:
            self.port = server.sockets[0].getsockname()[1]
            self._ready.set()
            await stopped.wait()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = bytearray()
        self._streams.append(stream)
        answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
        both = (_copy(reader, requests, stream), _copy(answers, writer, None))
        await asyncio.gather(*both, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: bytearray | None) -> None:
    with contextlib.closing(writer):
        while data := await reader.read(65536):
            if record is not None:
                record += data
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def recording(port: int) -> Iterator[RecordingProxy]:
    """Runs in a thread of its own."""
    proxy = RecordingProxy(port)
    thread = proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
        thread.join()


def _requests(data: bytes) -> Iterator[Request]:
    while END_OF_HEAD in data:
        head, _, data = data.partition(END_OF_HEAD)
        line, *headers = head.decode().split("\r\n")
        pairs = [header.split(": ", 1) for header in headers]
        length = next((int(value) for name, value in pairs if name.lower() == "content-length"), 0)
        body, data = data[:length], data[length:]
        yield Request(
            INCARNATION.sub("incarnation=…", ID.sub("…", line)),
            tuple(_without_secret(name, value) for name, value in pairs),
            _shape(json.loads(body)) if body else None,
        )


def _without_secret(name: str, value: str) -> str:
    own = name.lower() in ("host", "x-worker-token", "content-length")
    return name if own else f"{name}: {value}"


def _shape(value: Any) -> Any:
    """Names and types, not values: those differ from worker to worker."""
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items()}
    return type(value).__name__
