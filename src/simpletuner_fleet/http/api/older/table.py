"""Lists every request of older guides that is understood; docs/older-names.md has the list for people."""

from collections.abc import Sequence

from simpletuner_fleet.http.api.older import notices, organising, people, queue, training
from simpletuner_fleet.http.api.older.wording import Older, older_routes, understood
from simpletuner_fleet.http.edge.routes import Route

OLDER_NAMES: tuple[Older, ...] = (
    *queue.ROWS,
    *organising.ROWS,
    *people.ROWS,
    *notices.ROWS,
    *training.ROWS,
)


def in_older_words(rows: Sequence[Route]) -> list[Route]:
    return older_routes(rows, OLDER_NAMES)


def with_older_words(rows: Sequence[Route]) -> list[Route]:
    return understood(rows, OLDER_NAMES)
