"""Dramatiq with a Redis-compatible server that syncs every write."""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.peers.task_queue import WARM_UP_TASKS, TaskQueue
from bench.peers.valkey import redis_client, running_valkey
from bench.programs import environment, started
from bench.targets import DRAMATIQ

APP = "bench.peers.dramatiq_app"
PROCESSES, THREADS = 2, 8
SETTING = f"{PROCESSES} processes of {THREADS} threads, outcomes not kept"
MESSAGES = "dramatiq:bench.msgs"


@contextmanager
def running_dramatiq(folder: Path) -> Iterator[TaskQueue]:
    """Yields the queue, warmed up; a message leaves the hash of messages when its acknowledgement is on the disk."""
    with running_valkey(folder) as url:
        os.environ["BENCH_DRAMATIQ_URL"] = url
        argv = [sys.executable, "-m", "dramatiq", APP]
        argv += ["--processes", str(PROCESSES), "--threads", str(THREADS)]
        redis: Any = redis_client(url)
        noop: Any = importlib.import_module(APP).noop
        with started(argv, environment(folder), folder / "dramatiq.log"):
            queue = TaskQueue(
                name=DRAMATIQ, send=noop.send, all_acknowledged=lambda: not redis.hlen(MESSAGES)
            )
            queue.rate(WARM_UP_TASKS)
            yield queue
