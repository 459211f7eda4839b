"""The peer: a Celery task that does nothing, acknowledged when it is done."""

import importlib
import os
from typing import Any

celery: Any = importlib.import_module("celery")

app = celery.Celery("bench", broker=os.environ["BENCH_REDIS_URL"], backend=os.environ["BENCH_REDIS_URL"])
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="bench.noop")  # type: ignore[untyped-decorator]
def noop() -> None:
    """Nothing."""
