"""A small real HTTP server whose answers may have no end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def endless_server(
    body: Callable[[int], bytes], *, for_ever: bytes | None = None
) -> AsyncIterator[str]:
    """Yields its address. The n-th answer is this body, and then more and more of `for_ever`; of b"" nothing comes."""
    asked = 0
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        try:
            await reader.readuntil(b"\r\n\r\n")
            asked += 1
            content = body(asked)
            length = b"" if for_ever is not None else b"content-length: %d\r\n" % len(content)
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + length + b"\r\n" + content)
            while for_ever:
                writer.write(for_ever)
                await writer.drain()
            if for_ever is not None:
                await ended.wait()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        ended.set()
        server.close()
        await server.wait_closed()
