"""The least an HTTP server can do with an upload: take it and write it down. What ours is measured against."""

import asyncio
import os
import sys
from pathlib import Path

import uvloop
from starlette.types import Receive, Scope, Send

from simpletuner_fleet.http.server import Listening, serve


class Receiver:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = os.open(self._folder / "received", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        more = True
        while more:
            message = await receive()
            os.write(file, message.get("body", b""))
            more = message.get("more_body", False)
        await asyncio.to_thread(os.fsync, file)
        os.close(file)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def main(folder: Path) -> None:
    def ready(listening: Listening) -> None:
        (folder / "url").write_text(listening.url)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Receiver(folder), "127.0.0.1", 0, on_ready=ready))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
