"""Manages endpoints: everybody sets up their own; who administers notifications sees all."""

import asyncio
from functools import partial
from typing import Any

from msgspec import UNSET

from simpletuner_fleet.core.errors import Conflict, Invalid
from simpletuner_fleet.core.notices.checking import check_address
from simpletuner_fleet.core.notices.endpoint import Channel, DeliveryTry, Endpoint
from simpletuner_fleet.core.notices.kinds import KINDS, NEEDED, OF_EVERYBODY, OF_ONESELF
from simpletuner_fleet.engine.memory.owners import name_of
from simpletuner_fleet.http.api.admin.sessions import require_fresh_login
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.notices.bodies import (
    EndpointBody,
    EndpointChange,
    EndpointsList,
    EndpointView,
    EventsList,
    EventView,
    HistoryView,
    MadeView,
    ReplayBody,
    RotateBody,
    TrialView,
    changed_rules,
    delivery_view,
    endpoint_view,
    rules_of,
)
from simpletuner_fleet.http.api.ownership import writer_of
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.http.views.times import read_time
from simpletuner_fleet.orchestrator.notices import endpoints
from simpletuner_fleet.orchestrator.notices.endpoints import EndpointCaller, EndpointWithKey, NewEndpoint
from simpletuner_fleet.orchestrator.notices.trial import try_out

TAGS = ("notifications",)
PATH = "/api/notifications/{id}"
TRIAL_WAIT_S = 3.0
MAX_OVERLAP_S = 30 * 86_400.0


def endpoint_caller(call: Call[Any]) -> EndpointCaller:
    may = call.principal.can
    return EndpointCaller(writer=writer_of(call), may=may, sees_all=may(OF_EVERYBODY))


async def list_events(call: Call[None]) -> EventsList:
    """Lists the events that the caller may be told of."""
    may = call.principal.can
    return EventsList(
        [
            EventView(event=event, title=title)
            for event, title in KINDS.items()
            if all(map(may, NEEDED.get(event, (OF_ONESELF,))))
        ]
    )


async def list_endpoints(call: Call[None]) -> EndpointsList:
    rows = await endpoints.list_endpoints(deps_of(call).fleet, endpoint_caller(call))
    return EndpointsList(await views_of(call, rows))


async def add_endpoint(call: Call[EndpointBody]) -> MadeView:
    require_fresh_login(call)
    body, deps = call.body, deps_of(call)
    if body.channel is Channel.EMAIL and not (deps.deliverer and deps.deliverer.sender.has_mail):
        raise Conflict(
            "This server has no mail server.", next_step="Its owner sets one with --smtp-url and --smtp-from."
        )
    await _check_service(call, body.channel, body.address)
    asked = NewEndpoint(name=body.name, channel=body.channel, address=body.address, rules=rules_of(body))
    return await _made(call, await endpoints.add(deps.fleet, asked, endpoint_caller(call)))


async def _check_service(call: Call[Any], channel: Channel, address: str) -> None:
    """Checks an address as only Apprise can.

    Raises Conflict where Apprise is not installed, since nothing could be sent.
    """
    if channel is not Channel.APPRISE:
        return
    check_address(channel, address)
    deliverer = deps_of(call).deliverer
    if deliverer is None or deliverer.sender.apprise is None:
        raise Conflict(
            "This server has no Apprise, through which such a service is told.",
            next_step="Its owner installs it: pip install 'simpletuner-fleet[apprise]'.",
        )
    await deliverer.sender.apprise.check(address)


async def show_endpoint(call: Call[None]) -> EndpointView:
    return await _view(
        call, await endpoints.endpoint_of(deps_of(call).fleet, call.path["id"], endpoint_caller(call))
    )


async def change_endpoint(call: Call[EndpointChange]) -> EndpointView:
    require_fresh_login(call)
    body, fleet, who = call.body, deps_of(call).fleet, endpoint_caller(call)
    known = await endpoints.endpoint_of(fleet, call.path["id"], who)
    if body.address is not UNSET:
        check_address(known.channel, body.address)
        await _check_service(call, known.channel, body.address)
    changed = await endpoints.change(
        fleet,
        known.id,
        who,
        name=None if body.name is UNSET else body.name,
        address=None if body.address is UNSET else body.address,
        change_rules=partial(changed_rules, change=body),
    )
    return await _view(call, await _after(call, changed))


async def delete_endpoint(call: Call[None]) -> Done:
    deps, endpoint_id = deps_of(call), call.path["id"]
    await endpoints.delete(deps.fleet, endpoint_id, endpoint_caller(call))
    if deps.deliverer:
        await deps.deliverer.changed(endpoint_id)
    return Done(id=endpoint_id)


async def test_endpoint(call: Call[None]) -> TrialView:
    """Sends a test message and waits a little for the result.

    A slow receiver blocks nobody: the history has the rest.
    """
    deps = deps_of(call)
    who, endpoint_id = endpoint_caller(call), call.path["id"]
    if deps.deliverer is None:
        raise Conflict("This orchestrator sends nothing.")
    await endpoints.endpoint_of(deps.fleet, endpoint_id, who)
    deps.noted_trials.spend(endpoint_id)
    sending = asyncio.create_task(try_out(deps.fleet, deps.deliverer.sender, endpoint_id, who))
    deps.background_tasks.start(_awaited(sending))
    await asyncio.wait({sending}, timeout=TRIAL_WAIT_S)
    if not sending.done():
        return TrialView(state="sending")
    delivery = sending.result()
    return TrialView(state="delivered" if delivery.ok else "failed", detail=delivery.detail)


async def _awaited(sending: "asyncio.Task[DeliveryTry]") -> None:
    await sending


async def pause_endpoint(call: Call[None]) -> EndpointView:
    paused = await endpoints.pause(deps_of(call).fleet, call.path["id"], endpoint_caller(call))
    return await _view(call, await _after(call, paused))


async def resume_endpoint(call: Call[None]) -> EndpointView:
    resumed = await endpoints.resume(deps_of(call).fleet, call.path["id"], endpoint_caller(call))
    return await _view(call, await _after(call, resumed))


async def replay_endpoint(call: Call[ReplayBody]) -> EndpointView:
    if (call.body.seq is None) == (call.body.since is None):
        raise Invalid("Give either seq or since: from where to tell again.", path="$.seq")
    since = read_time(call.body.since, "$.since")
    replayed = await endpoints.replay(
        deps_of(call).fleet, call.path["id"], endpoint_caller(call), seq=call.body.seq, since=since
    )
    return await _view(call, await _after(call, replayed))


async def rotate_endpoint(call: Call[RotateBody]) -> MadeView:
    require_fresh_login(call)
    if not 0 <= call.body.overlap_s <= MAX_OVERLAP_S:
        raise Invalid("The old secret can stay valid for 30 days at most.", path="$.overlap_s")
    made = await endpoints.rotate_key(
        deps_of(call).fleet, call.path["id"], endpoint_caller(call), call.body.overlap_s
    )
    return await _made(call, made)


async def endpoint_history(call: Call[None]) -> HistoryView:
    rows = await endpoints.history_of(deps_of(call).fleet, call.path["id"], endpoint_caller(call))
    return HistoryView([delivery_view(row) for row in rows])


async def views_of(call: Call[Any], rows: list[Endpoint]) -> list[EndpointView]:
    fleet = deps_of(call).fleet
    now = fleet.clock.now()
    names = await fleet.read(lambda view: {row.owner: name_of(view, row.owner) for row in rows})
    return [endpoint_view(row, names[row.owner], now) for row in rows]


async def _view(call: Call[Any], endpoint: Endpoint) -> EndpointView:
    return (await views_of(call, [endpoint]))[0]


async def _made(call: Call[Any], made: EndpointWithKey) -> MadeView:
    endpoint = await _after(call, made.endpoint)
    return MadeView(endpoint=await _view(call, endpoint), secret=made.key)


async def _after(call: Call[Any], endpoint: Endpoint) -> Endpoint:
    deliverer = deps_of(call).deliverer
    if deliverer:
        await deliverer.changed(endpoint.id)
    return endpoint


def _row(
    method: str, path: str, handler: Any, body: Any, answer: Any, summary: str, status: int = 200
) -> Route:
    return Route(method, path, handler, OF_ONESELF, body, answer, summary, status=status, tags=TAGS)


ROUTES = [
    _row(
        "GET", "/api/notifications", list_endpoints, None, EndpointsList, "Where the caller is told of events"
    ),
    _row(
        "POST",
        "/api/notifications",
        add_endpoint,
        EndpointBody,
        MadeView,
        "Add a webhook, a mail address, a chat or a log receiver",
        201,
    ),
    _row("GET", "/api/notifications/events", list_events, None, EventsList, "What the caller may be told of"),
    _row("GET", PATH, show_endpoint, None, EndpointView, "One endpoint and how it fares"),
    _row("PATCH", PATH, change_endpoint, EndpointChange, EndpointView, "Change an endpoint"),
    _row("DELETE", PATH, delete_endpoint, None, Done, "Delete an endpoint"),
    _row("POST", f"{PATH}/test", test_endpoint, None, TrialView, "Send a test message"),
    _row(
        "POST", f"{PATH}/pause", pause_endpoint, None, EndpointView, "Send nothing there until it is resumed"
    ),
    _row("POST", f"{PATH}/resume", resume_endpoint, None, EndpointView, "Go on where it stood"),
    _row(
        "POST",
        f"{PATH}/replay",
        replay_endpoint,
        ReplayBody,
        EndpointView,
        "Tell again from a point of the log on",
    ),
    _row(
        "POST",
        f"{PATH}/secret",
        rotate_endpoint,
        RotateBody,
        MadeView,
        "Make a new signing secret; the old one stays valid for a while",
    ),
    _row("GET", f"{PATH}/history", endpoint_history, None, HistoryView, "The last tries to deliver there"),
]
