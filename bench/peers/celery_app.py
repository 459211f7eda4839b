"""A Celery task that does nothing, acknowledged when it is done."""

import importlib
import os
from typing import Any

celery: Any = importlib.import_module("celery")
url = os.environ["BENCH_CELERY_URL"]

app = celery.Celery("bench", broker=url, backend=url)
app.conf.update(
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task(name="bench.noop")  # type: ignore[untyped-decorator]
def noop() -> None:
    """Does nothing."""
