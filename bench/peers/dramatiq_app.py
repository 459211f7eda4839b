"""A Dramatiq actor that does nothing; its message is acknowledged when it is done."""

import importlib
import os
from typing import Any

dramatiq: Any = importlib.import_module("dramatiq")
redis_broker: Any = importlib.import_module("dramatiq.brokers.redis")

broker = redis_broker.RedisBroker(url=os.environ["BENCH_DRAMATIQ_URL"])
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name="bench")  # type: ignore[untyped-decorator]
def noop() -> None:
    """Does nothing."""
