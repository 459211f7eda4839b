"""Audit entries as rows. Reading must never stumble over a row that somebody has tampered with."""

import json
from typing import Any

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.store.database import Row

AUDIT_COLUMNS = (
    *("seq", "at", "event_type", "actor_id", "actor_name", "ip", "target_type", "target_id"),
    *("details", "hash"),
)

_text = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def entry_params(entry: AuditEntry) -> dict[str, Any]:
    return {
        "seq": entry.seq,
        "at": entry.at,
        "event_type": entry.event_type,
        "actor_id": entry.actor_id,
        "actor_name": entry.actor_name,
        "ip": entry.ip,
        "target_type": entry.target_type,
        "target_id": entry.target_id,
        "details": _text(entry.details),
        "hash": entry.hash,
    }


def entry_of(row: Row) -> AuditEntry:
    """From a row of AUDIT_COLUMNS."""
    return AuditEntry(
        seq=row[0],
        at=row[1],
        event_type=row[2],
        actor_id=row[3],
        actor_name=row[4],
        ip=row[5],
        target_type=row[6],
        target_id=row[7],
        details=_details(row[8]),
        hash=row[9],
    )


def _details(text: Any) -> dict[str, Any]:
    """What was written; anything we would not have written so is handed on as it is, to fail its hash."""
    try:
        details = json.loads(text)
        if isinstance(details, dict) and _text(details) == text:
            return details
    except (ValueError, TypeError):
        pass
    return {"unreadable": str(text)}
