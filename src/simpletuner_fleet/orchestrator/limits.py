"""Reads and sets how many jobs may run at once."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.placement.shares import FairShare
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.index import read_limits
from simpletuner_fleet.engine.memory.setting_documents import LIMITS_SETTING
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.organising.quotas import set_fair_share_within

NAMES = Limits.__struct_fields__


async def get_limits(fleet: Fleet) -> Limits:
    return await fleet.read(read_limits)


async def set_limits(fleet: Fleet, limits: Limits, actor: Actor) -> Limits:
    """Sets the limits. A lower one stops nothing that runs; a higher one starts what waited for it."""
    return await fleet.act(lambda transaction: _set_within(transaction, limits, actor))


async def change_concurrency(
    fleet: Fleet, limits: Mapping[str, int | None], share: Mapping[str, Any], actor: Actor
) -> tuple[Limits, FairShare]:
    """Changes the named fields of the limits and of fair share, all or none; the others stay as they are.

    Where the stored limits cannot be read nobody knows the others, so all of them have to be named.
    """

    def step(transaction: Transaction) -> tuple[Limits, FairShare]:
        if limits and len(limits) < len(NAMES) and transaction.organisation.is_unreadable(LIMITS_SETTING):
            raise Invalid(
                f"The stored limits cannot be read: name all of them ({', '.join(NAMES)}), null for no limit.",
                path="$",
                next_step="Use 'simpletuner limits set --limit global=none --limit user=none --limit team=none'.",
            )
        return (
            _set_within(transaction, replace(transaction.limits, **limits), actor),
            set_fair_share_within(transaction, replace(transaction.organisation.fair_share, **share), actor),
        )

    return await fleet.act(step)


def _set_within(transaction: Transaction, limits: Limits, actor: Actor) -> Limits:
    for name in NAMES:
        if (getattr(limits, name) or 0) < 0:
            raise Invalid(f"{name} must be 0 or more, or null for no limit.", path=f"$.{name}")
    was, unreadable = transaction.limits, transaction.organisation.is_unreadable(LIMITS_SETTING)
    if was != limits or unreadable:
        transaction.tx.put_setting(LIMITS_SETTING, msgspec.json.encode(limits).decode())
        transaction.limits_changed()
        if unreadable:
            transaction.organisation_changed()
        transaction.record(
            Event(
                type=EventType.LIMITS_SET,
                actor=actor,
                target_type="limits",
                target_id=LIMITS_SETTING,
                details={"limits": msgspec.to_builtins(limits), "was": msgspec.to_builtins(was)},
            )
        )
    return limits
