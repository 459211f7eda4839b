"""Probes for those who keep the server running."""

from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.http.api.deps import Deps, deps
from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Route

TAGS = ("server",)
PROBE_SETTING = "last_probe"
PROBED_AT_MOST_EVERY_S = 2.0


class Live(Struct, kw_only=True):
    status: str = "live"
    version: str = __version__


class Ready(Struct, kw_only=True):
    status: str = "ready"
    version: str = __version__


async def live(call: Call[None]) -> Live:
    return Live()


async def ready(call: Call[None]) -> Ready:
    """The store can be read and written; otherwise the answer is 503."""
    await _prove_store(deps(call))
    return Ready()


async def _prove_store(house: Deps) -> None:
    """Really writes, but not for every caller: anyone may ask."""
    now = house.fleet.clock.now()
    if house.proven_at is not None and now - house.proven_at < PROBED_AT_MOST_EVERY_S:
        return
    await house.fleet.act(lambda desk: desk.tx.put_setting(PROBE_SETTING, repr(now)))
    await house.fleet.read(lambda view: view.setting(PROBE_SETTING))
    house.proven_at = now


ROUTES = [
    Route(
        "GET",
        "/health/live",
        live,
        PUBLIC,
        answer=Live,
        summary="The process answers",
        tags=TAGS,
        prompt=True,
    ),
    Route(
        "GET",
        "/health/ready",
        ready,
        PUBLIC,
        answer=Ready,
        summary="The store can be read and written",
        tags=TAGS,
    ),
]
