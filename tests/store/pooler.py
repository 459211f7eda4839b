"""A pooler in front of PostgreSQL that gives a client any session it has for each transaction, as PgBouncer may."""

import asyncio
import struct
import threading
from contextlib import suppress

AUTHENTICATION_OK = b"R" + struct.pack("!ii", 8, 0)
INVENTED_KEY = b"K" + struct.pack("!iii", 12, 4_000_000, 1)
READY = b"Z" + struct.pack("!i", 5) + b"I"


class TransactionPooler:
    """Listens on a loopback port in a thread of its own; `socket_path` is the real server's."""

    def __init__(self, socket_path: str) -> None:
        self._socket_path = socket_path
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> "TransactionPooler":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, writer in self._idle:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            startup = await self._startup(reader, writer)
            writer.write(AUTHENTICATION_OK + INVENTED_KEY + READY)
            while True:
                await self._transaction(startup, await _message(reader), reader, writer)
        writer.close()
        self._tasks.discard(task)

    async def _startup(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Returns the client's first words; a wish for encryption is declined."""
        while True:
            length = struct.unpack("!i", await reader.readexactly(4))[0]
            body = await reader.readexactly(length - 4)
            if struct.unpack("!i", body[:4])[0] in (80877103, 80877104):
                writer.write(b"N")
                continue
            return struct.pack("!i", length) + body

    async def _transaction(
        self, startup: bytes, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Carries messages both ways on one session until the server says that no transaction is open."""
        if first[:1] == b"X":
            raise ConnectionError
        session = self._idle.pop() if self._idle else await self._session(startup)
        answers, questions = session
        message = first
        while True:
            questions.write(message)
            if message[:1] in b"QS":
                state = await _answers_until_ready(answers, writer)
                if state == b"I":
                    self._idle.append(session)
                    return
            message = await _message(reader)

    async def _session(self, startup: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self._socket_path)
        writer.write(startup)
        while (await _message(reader))[:1] != b"Z":
            pass
        return reader, writer


async def _answers_until_ready(answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    while True:
        message = await _message(answers)
        writer.write(message)
        if message[:1] == b"Z":
            return message[5:6]


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
