"""Remembers what workers have seen of the audit log: of each the first head that it brought, and the newest."""

from collections.abc import Collection

from simpletuner_fleet.core.audit import Witness

GONE_KEPT = 1_000
"""Of so many workers at least that are gone it stays known what they saw: machines come and go by the hour."""
HEADS = 2
"""Of each worker: its first and its newest."""


def note_witness(witnesses: dict[str, Witness], brought: Witness, workers: Collection[str] | None) -> None:
    """Adds a head, by the name of the worker that brought it; a later one cannot replace the worker's first.

    `workers` are those that are there: what they saw is never forgotten. None: they are being looked up.
    """
    first = f"{brought.who}, at first"
    if first not in witnesses:
        # Not before there are twice as many, so that a newcomer costs nothing for those who are gone.
        if workers is not None and len(witnesses) >= HEADS * (len(workers) + 2 * GONE_KEPT):
            gone = [name for name, one in witnesses.items() if one.who not in workers]
            for name in gone[: -HEADS * GONE_KEPT]:
                del witnesses[name]
        witnesses[first] = brought
    witnesses[brought.who] = brought
