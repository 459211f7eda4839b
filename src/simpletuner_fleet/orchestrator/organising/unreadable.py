"""Deletes settings that cannot be read, so that what they may forbid is no longer forbidden and they can be set anew."""

from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.engine.transaction import Transaction


def delete_if_unreadable(
    transaction: Transaction, prefix: str, name: str, kind: EventType, target_type: str, actor: Actor
) -> bool:
    """Deletes the setting if it is there and cannot be read, and tells whether it did."""
    key = prefix + name
    if not transaction.organisation.is_unreadable(key):
        return False
    transaction.tx.delete_setting(key)
    transaction.organisation_changed()
    transaction.record(
        Event(type=kind, actor=actor, target_type=target_type, target_id=name, details={"unreadable": True})
    )
    return True
