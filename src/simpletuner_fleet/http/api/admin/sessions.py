"""Lists the caller's sessions and ends them one by one, and checks whether a log-in is recent enough."""

from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.errors import LoginNotFresh
from simpletuner_fleet.core.people.accounts import FRESH_LOGIN_S, Session
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import ANY_USER, Call, Route
from simpletuner_fleet.http.views.fields import Time, view_of
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator.people import logins

TAGS = ("people",)


class SessionView(Struct, kw_only=True):
    id: str
    created_at: Time
    seen_at: Time
    """It is true to the hour."""
    ip: str
    """From where it began."""
    current: bool
    """It is the one that asks."""


class SessionsView(Struct):
    sessions: list[SessionView]


def require_fresh_login(call: Call[Any]) -> None:
    """Raises LoginNotFresh for an old log-in: tokens, users, links and secrets would outlast a browser left open."""
    since = call.principal.logged_in_at
    if since is not None and deps_of(call).fleet.clock.now() > since + FRESH_LOGIN_S:
        raise LoginNotFresh


async def list_sessions(call: Call[None]) -> SessionsView:
    """Returns the caller's sessions; an API token has none."""
    sessions = await logins.sessions_of(deps_of(call).fleet, call.principal.id)
    return SessionsView([session_view(call, session) for session in sessions])


def session_view(call: Call[Any], session: Session) -> SessionView:
    return view_of(
        SessionView,
        session,
        id=logins.session_id(session),
        current=session.token_hash == call.principal.token_hash,
    )


async def end_session(call: Call[None]) -> Done:
    deps = deps_of(call)
    ended = await logins.end_session(deps.fleet, call.principal.id, call.path["id"], call.actor)
    deps.revoke([ended])
    return Done(id=call.path["id"])


ROUTES = [
    Route(
        "GET",
        "/api/me/sessions",
        list_sessions,
        ANY_USER,
        answer=SessionsView,
        summary="The browsers in which the caller is logged in",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/me/sessions/{id}",
        end_session,
        ANY_USER,
        answer=Done,
        summary="Log out in one browser",
        tags=TAGS,
    ),
]
