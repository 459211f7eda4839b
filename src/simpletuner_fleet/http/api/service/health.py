"""Probes for those who keep the server running."""

from typing import Literal

from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.http.api.deps import Deps, deps_of
from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Route

TAGS = ("server",)
PROBE_SETTING = "last_probe"
PROBED_AT_MOST_EVERY_S = 2.0


class LiveAnswer(Struct, kw_only=True):
    status: str = "live"
    version: str = __version__


class ReadyAnswer(Struct, kw_only=True):
    status: str = "ready"
    version: str = __version__
    storage: Literal["ok", "low"] = "ok"
    """Low: the disk is nearly full, and uploads wait."""


async def live(call: Call[None]) -> LiveAnswer:
    return LiveAnswer()


async def ready(call: Call[None]) -> ReadyAnswer:
    """The store can be read and written; otherwise the answer is 503."""
    await _prove_store(deps_of(call))
    return ReadyAnswer(storage="low" if deps_of(call).space.is_low() else "ok")


async def _prove_store(deps: Deps) -> None:
    """Really writes, but not for every caller: anyone may ask."""
    now = deps.fleet.clock.now()
    if deps.proven_at is not None and now - deps.proven_at < PROBED_AT_MOST_EVERY_S:
        return
    await deps.fleet.act(lambda transaction: transaction.tx.put_setting(PROBE_SETTING, repr(now)))
    await deps.fleet.read(lambda view: view.setting(PROBE_SETTING))
    deps.proven_at = now


ROUTES = [
    Route(
        "GET",
        "/health/live",
        live,
        PUBLIC,
        answer=LiveAnswer,
        summary="The process answers",
        tags=TAGS,
        prompt=True,
    ),
    Route(
        "GET",
        "/health/ready",
        ready,
        PUBLIC,
        answer=ReadyAnswer,
        summary="The store can be read and written",
        tags=TAGS,
    ),
]
