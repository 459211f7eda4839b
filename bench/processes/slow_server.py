"""The orchestrator made worse on purpose: every step walks the whole queue. The backlog row must fail on it."""

import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from simpletuner_fleet.cli.main import main
from simpletuner_fleet.cli.programs import server
from simpletuner_fleet.ports import Store, Tx

T = TypeVar("T")
MORE_THAN_ANY_QUEUE = 10_000_000


def walking(store: Store) -> Store:
    """Returns the store, each of whose steps now costs as much as the queue is long."""
    write = store.write

    def write_slowly(step: Callable[[Tx], T]) -> Awaitable[T]:
        def slow_step(tx: Tx) -> T:
            tx.queue_page(None, MORE_THAN_ANY_QUEUE)
            return step(tx)

        return write(slow_step)

    store.write = write_slowly  # type: ignore[method-assign,assignment]
    return store


def run(arguments: list[str]) -> int:
    """Starts the program as it is, but for the store that it opens."""
    open_store: Callable[..., Store] = vars(server)["open_store"]

    def open_walking_store(*args: Any, **options: Any) -> Store:
        return walking(open_store(*args, **options))

    vars(server)["open_store"] = open_walking_store
    return int(main(arguments) or 0)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
