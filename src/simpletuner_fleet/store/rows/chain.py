"""Turns events into audit entries, each hashed together with the hash of the one before."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import msgspec

from simpletuner_fleet.core.audit import AuditEntry, canonical, new_entry_hash, quoted
from simpletuner_fleet.core.events import Event
from simpletuner_fleet.store.rows.audit import ChainedEntry
from simpletuner_fleet.store.rows.text import storable, storable_json

NUL, SURROGATE = "\\u0000", "\\ud"
"""How canonical text, which is ASCII, writes what no database holds; and pairs of surrogates, which every one does."""
_read_back: Callable[[str], dict[str, Any]] = msgspec.json.Decoder(dict[str, Any]).decode


def chained(last_seq: int, last_hash: str, at: float, events: Iterable[Event]) -> list[ChainedEntry]:
    """Returns the entries that follow the one with this number and hash, each with its row.

    They hold exactly what will be read back.
    """
    entries: list[ChainedEntry] = []
    at = float(at)
    when = quoted(repr(at))
    for event in events:
        last_seq += 1
        actor = event.actor
        names = (str(event.type), actor.id, actor.name, actor.ip, event.target_type)
        target, names_text, target_text = event.target_id, _names_text(names), quoted(event.target_id)
        if NUL in names_text or SURROGATE in names_text or NUL in target_text or SURROGATE in target_text:
            kind, who, name, ip, target_type, target = map(storable, (*names, target))
            names = (kind, who, name, ip, target_type)
            names_text, target_text = _names_text(names), quoted(target)
        details, text = event.details, canonical(event.details)
        if NUL in text or SURROGATE in text:
            details = storable_json(details)
            text = canonical(details)
        elif "[" in text or "{" in text[1:]:
            details = _read_back(text)  # tuples come back as lists
        last_hash = new_entry_hash(f"{last_seq},{when},{names_text},{target_text}", text, last_hash)
        entry = AuditEntry(last_seq, at, *names, target, details, last_hash)
        entries.append((entry, (last_seq, at, *names, target, text, last_hash)))
    return entries


@lru_cache(maxsize=1024)
def _names_text(names: tuple[str, ...]) -> str:
    """Returns the canonical texts of names, of which few are used over and over."""
    return canonical(names)[1:-1]
