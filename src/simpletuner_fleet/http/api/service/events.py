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
    "job": "jobs.read",
    "worker": "admin.workers",
    "audit": "admin.audit",
    "pool": "machines.read",
    "machine": "machines.read",
    "config": "configs.read",
    "dataset": "data.read",
}
"""By event, the permission to read what it is about. An event that is not here is sent to nobody."""
BELONGING = ("job", "config", "dataset")
"""Events about what belongs to somebody, and is not everybody's to know of."""
KEPT = ("pool", "machine")
"""Events about pools and their machines, which may be kept for some."""


class EventWatch:
    """Streams events to one watcher. A watcher that does not keep up is dropped and connects again."""

    __slots__ = ("_call", "_caller", "_deps", "_ip", "_organisation", "_readable", "_scope", "events")

    def __init__(self, deps: Deps, call: Call[None]) -> None:
        self._deps = deps
        self._caller, self._ip = call.principal.id, call.ip
        self._call = call
        self._organisation = deps.fleet.organisation
        self._scope = visibility_scope_of(call)
        self._readable = frozenset(
            event for event, permission in NEEDED_FOR.items() if call.principal.can(permission)
        )
        self.events = EventStream(
            on_close=self._closed,
            ping=self._ping,
            ping_every_s=deps.fleet.policy.ping_interval_s,
            max_buffer_bytes=MAX_BUFFER_BYTES,
        )
        deps.hub.watch(self, self._tell)
        self.events.push(self._about_time("ready"))

    def _tell(self, event_id: int, event: str, data: dict[str, Any]) -> None:
        if event not in self._readable:
            return
        shown = {"type": event, **data}
        if event in BELONGING and not self._sees(shown.pop("belongs", None)):
            return
        if event in KEPT and not self._knows_of(shown):
            return
        self.events.push(encode_raw(event, event_id, msgspec.json.encode(shown)))

    def _sees(self, thing: Belonging | None) -> bool:
        scope = self._scope_now()
        return scope.above if thing is None else may_see(scope, thing)

    def _knows_of(self, shown: dict[str, Any]) -> bool:
        """Tells whether the watcher may know of a pool or machine, and takes out whom it is kept for."""
        scope = self._scope_now()
        return knows_of(scope, shown.pop("audience")) if "audience" in shown else scope.above

    def _scope_now(self) -> VisibilityScope:
        """Returns what the watcher may see now: who has left a team since they began is told no more of it."""
        if self._organisation is not self._deps.fleet.organisation:
            self._organisation = self._deps.fleet.organisation
            self._scope = visibility_scope_of(self._call)
        return self._scope

    def _ping(self) -> bytes:
        if self._call.has_expired(self._deps.fleet.clock.now()):
            self.events.end("its token or session has expired")
        return self._about_time("ping")

    def _about_time(self, event: str) -> bytes:
        now = rfc3339(self._deps.fleet.clock.now())
        data = msgspec.json.encode({"type": event, "at": now, "caller": self._caller})
        return encode_raw(event, self._deps.hub.event_id, data)

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
