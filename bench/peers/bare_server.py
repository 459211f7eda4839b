"""The least that a server in Python can do for a life cycle: the same requests, stored before they are answered.

It has no rules, no people, no pages and no memory of anything but which workers are free. It takes whatever it is sent,
links a hash to each change as an audit log does, and syncs every commit as our store does. What our server takes
beyond this is what it decides, checks and tells others.
"""

import asyncio
import hashlib
import secrets
import sqlite3
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import httptools
import msgspec
import uvloop

SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE jobs (id TEXT PRIMARY KEY, state TEXT, worker TEXT, epoch INTEGER, changed_at REAL) WITHOUT ROWID;
CREATE INDEX jobs_by_state ON jobs (state, changed_at);
CREATE TABLE audit (seq INTEGER PRIMARY KEY, at REAL, entry BLOB, hash BLOB);
"""
SAVE_JOB = """
INSERT INTO jobs VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE
SET state = excluded.state, worker = excluded.worker, epoch = excluded.epoch, changed_at = excluded.changed_at
"""
SAVE_ENTRY = "INSERT INTO audit VALUES (?, ?, ?, ?)"
JOBS = "/api/workers/job/"
STREAM = "/stream/"
_encode = msgspec.json.Encoder().encode


class Message(msgspec.Struct):
    """As much as is needed of what a worker sends about a job."""

    epoch: int
    status: str = "accepted"


class Job(msgspec.Struct):
    id: str
    state: str = "queued"
    worker: str = ""
    epoch: int = 0
    changed_at: float = 0.0


class Batch(msgspec.Struct):
    """What the next commit stores, and what is sent once it is on the disk."""

    jobs: dict[str, Job] = {}
    entries: list[tuple[int, float, bytes, bytes]] = []
    messages: list[tuple[asyncio.Transport, bytes]] = []


_decode = msgspec.json.Decoder(Message).decode


class Queue:
    """Jobs in the order of their submission, and the workers that are free."""

    def __init__(self, database: Path) -> None:
        self._database = sqlite3.connect(database, isolation_level=None, check_same_thread=False)
        self._database.executescript(SCHEMA)
        self._thread = ThreadPoolExecutor(1)
        self._committing = False
        self._batch = Batch()
        self._live: dict[str, Job] = {}
        self._waiting: deque[Job] = deque()
        self._free: deque[str] = deque()
        self._streams: dict[str, asyncio.Transport] = {}
        self._seq = 0
        self._hash = b""

    def open_stream(self, worker: str, transport: asyncio.Transport) -> None:
        self._streams[worker] = transport
        self._free.append(worker)

    def submit(self, transport: asyncio.Transport) -> None:
        job = Job(secrets.token_hex(12))
        self._live[job.id] = job
        self._waiting.append(job)
        self._save(job)
        self._place()
        self._send(transport, answer(_encode({"job_id": job.id})))

    def take(self, transport: asyncio.Transport, job_id: str, body: bytes) -> None:
        """Takes an acceptance or a report."""
        message, job = _decode(body), self._live[job_id]
        if message.epoch != job.epoch:
            raise ValueError(f"Job {job_id} is in epoch {job.epoch}, not {message.epoch}.")
        job.state = message.status
        self._save(job)
        if job.state == "completed":
            del self._live[job_id]
            self._free.append(job.worker)
            self._place()
        self._send(transport, answer(b"{}"))

    def _place(self) -> None:
        while self._waiting and self._free:
            job = self._waiting.popleft()
            job.worker, job.epoch, job.state = self._free.popleft(), 1, "offered"
            self._save(job)
            offer = _encode({"type": "job_submit", "job_id": job.id, "attempt": 1, "epoch": job.epoch})
            event = b"data: %b\n\n" % offer
            self._send(self._streams[job.worker], b"%x\r\n%b\r\n" % (len(event), event))

    def _save(self, job: Job) -> None:
        self._seq += 1
        job.changed_at = time.time()
        entry = _encode((self._seq, job.id, job.state, job.worker, job.epoch))
        self._hash = hashlib.sha256(self._hash + entry).digest()
        self._batch.jobs[job.id] = job
        self._batch.entries.append((self._seq, job.changed_at, entry, self._hash))

    def _send(self, transport: asyncio.Transport, message: bytes) -> None:
        self._batch.messages.append((transport, message))
        if not self._committing:
            self._committing = True
            asyncio.get_running_loop().call_soon(self._commit)

    def _commit(self) -> None:
        batch, self._batch = self._batch, Batch()
        rows = [msgspec.structs.astuple(job) for job in batch.jobs.values()]
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._write, rows, batch.entries)
        work.add_done_callback(lambda done: self._committed(done, batch))

    def _write(self, rows: list[tuple[Any, ...]], entries: list[tuple[int, float, bytes, bytes]]) -> None:
        self._database.execute("BEGIN IMMEDIATE")
        self._database.executemany(SAVE_JOB, rows)
        self._database.executemany(SAVE_ENTRY, entries)
        self._database.execute("COMMIT")

    def _committed(self, done: "asyncio.Future[None]", batch: Batch) -> None:
        done.result()
        self._committing = bool(self._batch.messages)
        if self._committing:
            self._commit()
        for transport, message in batch.messages:
            transport.write(message)


class Connection(asyncio.Protocol):
    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._parser = httptools.HttpRequestParser(self)
        self._url = self._body = b""
        self._token = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"X-Worker-Token":
            self._token = value.decode()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path = self._url.decode().partition("?")[0]
        if path == "/api/queue/submit":
            self._queue.submit(self._transport)
        elif path.startswith(JOBS):
            self._queue.take(self._transport, path[len(JOBS) :].partition("/")[0], self._body)
        elif path == "/api/workers/register":
            self._transport.write(answer(_encode({"stream_url": f"{STREAM}{self._token}?of=worker"})))
        elif path.startswith(STREAM):
            self._transport.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            self._queue.open_stream(self._token, self._transport)
        else:
            self._transport.write(answer(b"{}"))


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


async def serve(database: Path, port: int) -> None:
    queue = Queue(database)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(queue), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
