"""Converts audit entries to rows and back. Reading never fails on a row that somebody has tampered with."""

import json
from typing import Any

from simpletuner_fleet.core.audit import AuditEntry, canonical
from simpletuner_fleet.store.rows.batches import Table, Values
from simpletuner_fleet.store.sql.database import Row

AUDIT_COLUMNS = (
    *("seq", "at", "event_type", "actor_id", "actor_name", "ip", "target_type", "target_id"),
    *("details", "hash"),
)
AUDIT_TABLE = Table(name="audit", columns=AUDIT_COLUMNS)
ChainedEntry = tuple[AuditEntry, Values]
"""An entry and its row, which holds the text of the details that its hash was made of."""


def entry_of(row: Row) -> AuditEntry:
    """Returns the entry of a row of AUDIT_COLUMNS."""
    *columns, details, entry_hash = row
    fields = dict(zip(AUDIT_COLUMNS, columns, strict=False))
    return AuditEntry(**fields, details=_details(details), hash=entry_hash)


def _details(text: Any) -> dict[str, Any]:
    """Returns the details. A text that our encoder would not have written is returned so that it fails its hash."""
    try:
        details = json.loads(text)
        if isinstance(details, dict) and canonical(details) == text:
            return details
    except (ValueError, TypeError):
        pass
    return {"unreadable": str(text)}
