"""How many jobs may run at once, in all and for each user."""

from msgspec import UNSET, Struct, UnsetType

from simpletuner_fleet.core.bounds import Whole
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.orchestrator import limits

TAGS = ("queue",)


class ConcurrencyBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Left out: as it is. Null: no limit."""

    global_running: Whole | UnsetType | None = UNSET
    user_running: Whole | UnsetType | None = UNSET


async def get_concurrency(call: Call[None]) -> Limits:
    return await limits.get_limits(deps_of(call).fleet)


async def set_concurrency(call: Call[ConcurrencyBody]) -> Limits:
    fleet, changes = deps_of(call).fleet, call.body
    present = await limits.get_limits(fleet)
    new_limits = Limits(
        global_running=present.global_running if changes.global_running is UNSET else changes.global_running,
        user_running=present.user_running if changes.user_running is UNSET else changes.user_running,
    )
    return await limits.set_limits(fleet, new_limits, call.actor)


ROUTES = [
    Route(
        "GET",
        "/api/queue/concurrency",
        get_concurrency,
        "queue.read",
        answer=Limits,
        summary="Concurrent job limits",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/queue/concurrency",
        set_concurrency,
        "admin.limits",
        ConcurrencyBody,
        Limits,
        "Set how many jobs may run at once",
        tags=TAGS,
    ),
]
