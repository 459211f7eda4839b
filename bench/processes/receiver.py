"""The least an HTTP server can do with an upload: take it and write it down. What ours is measured against."""

import asyncio
import os
import sys
from pathlib import Path

import uvloop

from simpletuner_fleet.http.edge.exchange import Exchange, head_of
from simpletuner_fleet.http.server.serving import Listening, serve


class Receiver:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def __call__(self, exchange: Exchange) -> None:
        file = os.open(self._folder / "received", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        more = True
        while more:
            piece, more = await exchange.receive()
            os.write(file, piece)
        await asyncio.to_thread(os.fsync, file)
        os.close(file)
        exchange.respond(head_of(204, []), b"")


def main(folder: Path) -> None:
    def ready(listening: Listening) -> None:
        (folder / "url").write_text(listening.url)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Receiver(folder), "127.0.0.1", 0, on_ready=ready))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
