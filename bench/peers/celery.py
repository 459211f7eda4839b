"""Celery with a Redis-compatible server that syncs every write."""

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
from bench.targets import CELERY

APP = "bench.peers.celery_app"
WORKER_PROCESSES = 8
SETTING = f"{WORKER_PROCESSES} processes, acks_late, outcomes not kept"


@contextmanager
def running_celery(folder: Path) -> Iterator[TaskQueue]:
    """Yields the queue, warmed up; a task leaves the hash `unacked` when its acknowledgement is on the disk."""
    with running_valkey(folder) as url:
        os.environ["BENCH_CELERY_URL"] = url
        argv = [sys.executable, "-m", "celery", "-A", APP, "worker", "--loglevel", "ERROR"]
        argv += ["--concurrency", str(WORKER_PROCESSES), "--pool", "prefork"]
        argv += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        redis: Any = redis_client(url)
        noop: Any = importlib.import_module(APP).noop
        with started(argv, environment(folder), folder / "celery.log"):
            queue = TaskQueue(
                name=CELERY,
                send=lambda: noop.apply_async(ignore_result=True),
                all_acknowledged=lambda: not redis.llen("celery") and not redis.hlen("unacked"),
            )
            queue.rate(WARM_UP_TASKS)
            yield queue
