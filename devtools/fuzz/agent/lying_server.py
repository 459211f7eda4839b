"""An orchestrator that says whatever it is told to: enough of HTTP for one worker, and no more."""

import asyncio
import json
from typing import Any

GOOD_TIMES = {"heartbeat_interval_s": 0.1, "heartbeat_timeout_s": 20.0}


class LyingServer:
    def __init__(self) -> None:
        self.url = ""
        self.lies: list[bytes] = []
        """Whole HTTP answers; each is given once, instead of the next answer to a heartbeat or a registration."""
        self.reports: list[dict[str, Any]] = []
        self.heartbeats = 0
        self.registrations = 0
        self._streams: list[asyncio.StreamWriter] = []
        self._opened = asyncio.Event()
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "LyingServer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()

    async def say(self, data: bytes) -> None:
        """On the newest stream; waits for one if there is none. Who hangs up while we speak misses the rest."""
        while not self._streams or self._streams[-1].transport.is_closing():
            self._opened.clear()
            await asyncio.wait_for(self._opened.wait(), 20)
        try:
            self._streams[-1].write(data)
            await self._streams[-1].drain()
        except OSError:
            self._streams[-1].transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            length = next(
                (int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:")),
                0,
            )
            body = await reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            self._hang_up(writer)
            return
        path = head.split(" ", 2)[1]
        if path.startswith("/api/workers/stream"):
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n: hello\n\n"
            )
            self._streams.append(writer)
            self._opened.set()
            return
        writer.write(self._answer(path, body))
        self._hang_up(writer)

    def _hang_up(self, writer: asyncio.StreamWriter) -> None:
        self._open.discard(writer)
        writer.close()

    def _answer(self, path: str, body: bytes) -> bytes:
        if path.endswith(("/register", "/heartbeat")):
            self.registrations += path.endswith("/register")
            self.heartbeats += path.endswith("/heartbeat")
            if self.lies:
                return self.lies.pop(0)
        return answer(200, json.dumps(self._truth(path, body)).encode())

    def _truth(self, path: str, body: bytes) -> dict[str, Any]:
        job_id = path.split("/")[4] if "/job/" in path else ""
        if path.endswith("/register"):
            stream = {"stream_url": "/api/workers/stream?worker_id=w_1", "ping_interval_s": 5.0}
            return {"worker_id": "w_1", "name": "w", "status": "idle", **stream, **GOOD_TIMES}
        if path.endswith("/heartbeat"):
            return {"status": "busy", **GOOD_TIMES}
        if path.endswith("/accept"):
            return {"job_id": job_id, "attempt": 1, "epoch": json.loads(body)["epoch"]}
        if path.endswith("/status"):
            self.reports.append({"job_id": job_id, **json.loads(body)})
            return {"accepted": True, "job_status": "running"}
        return {"next_offset": 1 << 40}


def answer(status: int, body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 %d X" % status, b"Content-Length: %d" % len(body), b"Connection: close", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body
