"""Events become audit entries, each hashed over the one before."""

from collections.abc import Iterable

from simpletuner_fleet.core.audit import AuditEntry, canonical_details, new_entry_hash
from simpletuner_fleet.core.events import Event
from simpletuner_fleet.store.rows.text import storable, storable_json


def chained(
    last_seq: int, last_hash: str, at: float, events: Iterable[Event]
) -> list[tuple[AuditEntry, str]]:
    """Returns the entries that follow the one with this number and hash, each with the text of its details.

    They hold exactly what will be read back.
    """
    entries: list[tuple[AuditEntry, str]] = []
    at = float(at)
    for event in events:
        last_seq += 1
        kind, details = event.type.value, storable_json(event.details)
        people_and_things = (
            storable(event.actor.id),
            storable(event.actor.name),
            storable(event.actor.ip),
            storable(event.target_type),
            storable(event.target_id),
        )
        text = canonical_details(details)
        last_hash = new_entry_hash(last_seq, at, kind, people_and_things, text, last_hash)
        entries.append((AuditEntry(last_seq, at, kind, *people_and_things, details, last_hash), text))
    return entries
