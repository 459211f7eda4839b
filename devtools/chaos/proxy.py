"""A TCP proxy between one worker and the orchestrator that can drop every connection, or let nothing through."""

import asyncio
from contextlib import suppress


class Proxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._open = asyncio.Event()
        self._open.set()
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.drop()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def drop(self) -> None:
        """Ends every connection there is; new ones are served."""
        for connection in self._connections:
            connection.cancel()

    def cut(self) -> None:
        """Lets nothing pass and closes nothing: neither end is told."""
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        upstream: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            from_server, upstream = await asyncio.open_connection("127.0.0.1", self._target_port)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._copy(reader, upstream))
                tasks.create_task(self._copy(from_server, writer))
        except (OSError, ExceptionGroup, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(connection)
            for end in (writer, upstream):
                if end is not None:
                    end.transport.abort()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            await self._open.wait()
            writer.write(data)
            await writer.drain()
        with suppress(OSError, RuntimeError):
            writer.write_eof()
