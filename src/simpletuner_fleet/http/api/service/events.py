"""Streams small events to consoles, CLIs and other watchers: they say what changed, not how it looks now."""

from typing import Any

import msgspec

from simpletuner_fleet.core.people.visibility import Belonging, VisibilityScope, knows_of, may_see
from simpletuner_fleet.http.api.deps import Deps, deps_of, visibility_scope_of
from simpletuner_fleet.http.edge.routes import Call, Route, rfc3339
from simpletuner_fleet.http.edge.streams import EventStream
from simpletuner_fleet.protocol.sse import encode_raw

MAX_BUFFER_BYTES = 256 * 1024
NEEDED_FOR = {
    "worker": "admin.workers",
    "audit": "admin.audit",
    "pool": "machines.read",
    "machine": "machines.read",
    "config": "configs.read",
    "dataset": "data.read",
}
"""Events that not every reader of jobs may see."""
BELONGING = ("job", "config", "dataset")
"""Events about what belongs to somebody, and is not everybody's to know of."""
POOL = "pool"


class EventWatch:
    """Streams events to one watcher. A watcher that does not keep up is dropped and connects again."""

    __slots__ = ("_call", "_caller", "_deps", "_hidden", "_ip", "_organisation", "_scope", "events")

    def __init__(self, deps: Deps, call: Call[None]) -> None:
        self._deps = deps
        self._caller, self._ip = call.principal.id, call.ip
        self._call = call
        self._organisation = deps.fleet.organisation
        self._scope = visibility_scope_of(call)
        self._hidden = frozenset(
            event for event, permission in NEEDED_FOR.items() if not call.principal.can(permission)
        )
        self.events = EventStream(
            on_close=self._closed,
            ping=self._ping,
            ping_every_s=deps.fleet.policy.ping_interval_s,
            max_buffer_bytes=MAX_BUFFER_BYTES,
        )
        deps.hub.watch(self, self._tell)
        self._tell(deps.hub.event_id, "ready", {"at": rfc3339(deps.fleet.clock.now())})

    def _tell(self, event_id: int, event: str, data: dict[str, Any]) -> None:
        if event in self._hidden:
            return
        shown = {"type": event, **data}
        if event in BELONGING and not self._sees(shown.pop("belongs", None)):
            return
        if event == POOL and not knows_of(self._scope_now(), shown.pop("audience", None)):
            return
        self.events.push(encode_raw(event, event_id, msgspec.json.encode(shown)))

    def _sees(self, thing: Belonging | None) -> bool:
        scope = self._scope_now()
        return scope.above if thing is None else may_see(scope, thing)

    def _scope_now(self) -> VisibilityScope:
        """Returns what the watcher may see now: who has left a team since they began is told no more of it."""
        if self._organisation is not self._deps.fleet.organisation:
            self._organisation = self._deps.fleet.organisation
            self._scope = visibility_scope_of(self._call)
        return self._scope

    def _ping(self) -> bytes:
        now = rfc3339(self._deps.fleet.clock.now())
        data = msgspec.json.encode({"type": "ping", "at": now})
        return encode_raw("ping", self._deps.hub.event_id, data)

    def _closed(self, why: str) -> None:
        self._deps.hub.unwatch(self)
        self._deps.watching.leave(self._caller, self._ip)


async def events(call: Call[None]) -> EventStream:
    deps = deps_of(call)
    deps.watching.enter(call.principal.id, call.ip)
    return EventWatch(deps, call).events


ROUTES = [
    Route(
        "GET",
        "/api/events",
        events,
        "jobs.read",
        summary="Server-Sent Events: what changed, as it changes",
        tags=("server",),
        stream=True,
    )
]
