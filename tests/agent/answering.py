"""An orchestrator that answers every call in the same way, for an agent's senders."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.protocol.messages import JobSubmit

OFFER = JobSubmit(
    job_id="j",
    attempt=1,
    attempt_id="a",
    epoch=1,
    config_name="",
    config={},
    trainer="command",
    upload_endpoint="",
)


@asynccontextmanager
async def answering(
    answer: Callable[[], tuple[HTTPStatus, Any]], hear: Callable[[bytes], None] = lambda body: None
) -> AsyncIterator[OrchestratorClient]:
    """Yields a client of it; `answer` is asked for each call anew, and `hear` is told what it was called with."""
    hung_up = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: *(\d+)", head.lower())
                hear(await reader.readexactly(int(length[1]) if length else 0))
                status, document = answer()
                body = json.dumps(document).encode()
                writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    client = OrchestratorClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lambda: "t", None)
    try:
        yield client
    finally:
        await client.close()
        await asyncio.wait_for(hung_up.wait(), 5)
        server.close()
