"""Reads and sets how many jobs may run at once."""

import msgspec

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.index import LIMITS_SETTING, read_limits
from simpletuner_fleet.engine.transaction import Transaction


async def get_limits(fleet: Fleet) -> Limits:
    return await fleet.read(read_limits)


async def set_limits(fleet: Fleet, limits: Limits, actor: Actor) -> Limits:
    """Sets the limits. A lower one stops nothing that runs; a higher one starts what waited for it."""
    for name in ("global_running", "user_running", "team_running"):
        if (getattr(limits, name) or 0) < 0:
            raise Invalid(f"{name} must be 0 or more, or null for no limit.", path=f"$.{name}")

    def step(transaction: Transaction) -> Limits:
        was = transaction.limits
        if was != limits:
            transaction.tx.put_setting(LIMITS_SETTING, msgspec.json.encode(limits).decode())
            transaction.limits_changed()
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

    return await fleet.act(step)
