"""A server without rules that stores the same requests: the room that is left above ours in this language."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.load.generator import LoadGenerator, connected_load
from bench.load.worker_messages import WorkerAccount
from bench.options import Options
from bench.programs import Server, accepts_connections, environment, free_port, started, wait_until

PROGRAM = (sys.executable, "-m", "bench.peers.bare_server")


@contextmanager
def running_bare_server(folder: Path, options: Options) -> Iterator[tuple[Server, LoadGenerator]]:
    """Yields the server and workers that are connected to it."""
    port = free_port()
    argv = [*PROGRAM, str(folder / "bare.db"), str(port)]
    accounts = [
        WorkerAccount(name=f"load-{number}", token=f"token-{number}", worker_id=f"w-{number}")
        for number in range(options.cycle_workers)
    ]
    with started(argv, environment(folder), folder / "bare.log") as process:
        wait_until(lambda: accepts_connections(port), "the bare server listens")
        server = Server(process, f"http://127.0.0.1:{port}", admin_token="none")
        with connected_load(server, accounts) as (generator,):
            yield server, generator
