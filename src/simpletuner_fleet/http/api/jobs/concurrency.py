"""Reads and sets how many jobs may run at once in all, per user and per team, and whether shares count."""

from msgspec import UNSET, Struct, UnsetType

from simpletuner_fleet.core.bounds import Seconds, Whole
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.placement.shares import FairShare
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.orchestrator import limits

TAGS = ("queue",)
OTHER_NAMES = {
    "global_running": "max_concurrent",
    "user_running": "user_max_concurrent",
    "team_running": "team_max_concurrent",
}
"""Each limit, and what the guides of the trainer itself call it: both are understood, and both are told."""


class ConcurrencyBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Describes a change of how many jobs may run at once, and of fair share.

    What is left out stays as it is; null means no limit.
    """

    global_running: Whole | UnsetType | None = UNSET
    user_running: Whole | UnsetType | None = UNSET
    team_running: Whole | UnsetType | None = UNSET
    max_concurrent: Whole | UnsetType | None = UNSET
    """Another name of `global_running`."""
    user_max_concurrent: Whole | UnsetType | None = UNSET
    team_max_concurrent: Whole | UnsetType | None = UNSET
    enable_fair_share: bool | UnsetType = UNSET
    fair_share_half_life_s: Seconds | UnsetType = UNSET


class ConcurrencyView(Limits, frozen=True, kw_only=True):
    success: bool = True
    max_concurrent: int | None = None
    user_max_concurrent: int | None = None
    team_max_concurrent: int | None = None
    enable_fair_share: bool = False
    fair_share_half_life_s: float = 0.0


async def get_concurrency(call: Call[None]) -> ConcurrencyView:
    fleet = deps_of(call).fleet
    return _view(await limits.get_limits(fleet), fleet.organisation.fair_share)


async def set_concurrency(call: Call[ConcurrencyBody]) -> ConcurrencyView:
    body = call.body
    chosen = {name: value for name in OTHER_NAMES if (value := _chosen(body, name)) is not UNSET}
    shares = {"enabled": body.enable_fair_share, "half_life_s": body.fair_share_half_life_s}
    share = {name: value for name, value in shares.items() if value is not UNSET}
    return _view(*await limits.change_concurrency(deps_of(call).fleet, chosen, share, call.actor))


def _chosen(changes: ConcurrencyBody, name: str) -> int | UnsetType | None:
    """Returns what was asked for under either name; if both are given, they must agree."""
    asked = [value for one in (name, OTHER_NAMES[name]) if (value := getattr(changes, one)) is not UNSET]
    if len(set(asked)) > 1:
        raise Invalid(f"{name} and {OTHER_NAMES[name]} are one limit, and differ.", path=f"$.{name}")
    return asked[0] if asked else UNSET


def _view(chosen: Limits, share: FairShare) -> ConcurrencyView:
    values = {name: getattr(chosen, name) for name in OTHER_NAMES}
    return ConcurrencyView(
        **values,
        **{other: values[name] for name, other in OTHER_NAMES.items()},
        enable_fair_share=share.enabled,
        fair_share_half_life_s=share.half_life_s,
    )


ROUTES = [
    Route(
        "GET",
        "/api/queue/concurrency",
        get_concurrency,
        "queue.read",
        answer=ConcurrencyView,
        summary="Concurrent job limits",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/queue/concurrency",
        set_concurrency,
        "admin.limits",
        ConcurrencyBody,
        ConcurrencyView,
        "Set how many jobs may run at once, and whether shares count",
        tags=TAGS,
    ),
]
