"""Events become audit entries, each hashed over the one before."""

from collections.abc import Iterable

from msgspec.structs import replace

from simpletuner_fleet.core.audit import AuditEntry, canonical, entry_hash
from simpletuner_fleet.core.events import Event
from simpletuner_fleet.store.rows.text import storable, storable_json


def chained(
    last_seq: int, last_hash: str, at: float, events: Iterable[Event]
) -> list[tuple[AuditEntry, str]]:
    """Returns the entries that follow the one with this number and hash, each with the text of its details.

    They hold exactly what will be read back.
    """
    entries: list[tuple[AuditEntry, str]] = []
    for event in events:
        last_seq += 1
        bare = AuditEntry(
            seq=last_seq,
            at=float(at),
            event_type=event.type.value,
            actor_id=storable(event.actor.id),
            actor_name=storable(event.actor.name),
            ip=storable(event.actor.ip),
            target_type=storable(event.target_type),
            target_id=storable(event.target_id),
            details=storable_json(event.details),
        )
        details = canonical(bare.details)
        last_hash = entry_hash(bare, last_hash, details)
        entries.append((replace(bare, hash=last_hash), details))
    return entries
