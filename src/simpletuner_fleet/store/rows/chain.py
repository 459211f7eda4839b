"""Turns events into audit entries, each hashed together with the hash of the one before."""

from collections.abc import Iterable
from itertools import repeat

from simpletuner_fleet.core.audit import AuditEntry, canonical, new_entry_hash
from simpletuner_fleet.core.events import Event
from simpletuner_fleet.store.rows.text import is_plain, storable, storable_json

PLAIN = (str, int, float, type(None))
UNSTORABLE_MARKS = ("\\u0000", "\\ud")
"""How canonical text, which is ASCII, writes what no database holds; and pairs of surrogates, which every one does."""


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
        kind, actor = str(event.type), event.actor
        details, text = event.details, canonical(event.details)
        if not all(map(isinstance, details.values(), repeat(PLAIN))) or _may_be_unstorable(text):
            details = storable_json(details)
            text = canonical(details)
        people_and_things = (actor.id, actor.name, actor.ip, event.target_type, event.target_id)
        if not is_plain("".join(people_and_things)):
            who, name, ip, target_type, target = map(storable, people_and_things)
            people_and_things = (who, name, ip, target_type, target)
        last_hash = new_entry_hash(last_seq, at, kind, people_and_things, text, last_hash)
        entries.append((AuditEntry(last_seq, at, kind, *people_and_things, details, last_hash), text))
    return entries


def _may_be_unstorable(text: str) -> bool:
    return UNSTORABLE_MARKS[0] in text or UNSTORABLE_MARKS[1] in text
