"""Shows the one-time link for the first log-in, the log-in, the user's own account, and help."""

from contextlib import suppress
from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.errors import LinkUsed, NotFound
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.sign_in import providers as sign_in
from simpletuner_fleet.http.api.sign_in.terminals import TOKEN_LIFE_S
from simpletuner_fleet.http.edge.routes import ANY_USER, PUBLIC, Call, Reply, Route
from simpletuner_fleet.orchestrator.people import logins
from simpletuner_fleet.orchestrator.people.logins import StartKey
from simpletuner_fleet.web.frame.page import page

DAYS = int(TOKEN_LIFE_S // 86_400)
"""How long a terminal is let in for."""


class StartPageQuery(Struct, kw_only=True):
    k: str = ""


class LoginQuery(Struct, kw_only=True):
    next: str = "/"


class TerminalQuery(Struct, kw_only=True):
    code: Annotated[str, Meta(max_length=64)] = ""
    done: Annotated[str, Meta(max_length=6)] = ""


class ReturnQuery(Struct, kw_only=True):
    """Holds the query with which a sign-in provider sends the browser back; other parameters are ignored."""

    code: Annotated[str, Meta(max_length=4096)] = ""
    state: Annotated[str, Meta(max_length=256)] = ""
    error: Annotated[str, Meta(max_length=1024)] = ""
    iss: Annotated[str, Meta(max_length=1024)] = ""


async def start(call: Call[None]) -> Reply:
    """Shows the one-time link's page. Only choosing a name and password uses the link up."""
    link = await _good_for(call) if call.query.k else None
    return page(
        call,
        "access/start.html",
        key=call.query.k if link else "",
        used=bool(call.query.k and not link),
        whose=link.user.name if link and link.user else "",
    )


async def _good_for(call: Call[None]) -> StartKey | None:
    try:
        return await logins.start_key(deps_of(call).fleet, call.query.k)
    except LinkUsed:
        return None


async def login(call: Call[None]) -> Reply:
    ways = deps_of(call).sign_in
    return page(
        call,
        "access/login.html",
        following=own_path(call.query.next),
        providers=ways.ways(call.headers),
        directories=", ".join(one.settings.title for one in ways.directories),
    )


async def me(call: Call[None]) -> Reply:
    caller = call.principal
    sessions = await logins.sessions_of(deps_of(call).fleet, caller.id) if caller.kind == "user" else []
    return page(
        call,
        "access/me.html",
        sessions=sessions,
        session_id=logins.session_id,
        provider=await _provider(call),
    )


async def _provider(call: Call[None]) -> str:
    """Returns the name of the user's sign-in provider; '' for a user with a password of ours."""
    deps = deps_of(call)
    user = await deps.fleet.read_now(lambda view: view.user(call.principal.id))
    return deps.sign_in.title_of(user.issuer) if user and user.issuer else ""


async def login_with(call: Call[None]) -> Reply:
    return await sign_in.begin(call, own_path(call.query.next))


async def login_back(call: Call[None]) -> Reply:
    query = call.query
    return await sign_in.finish(
        call, code=query.code, state=query.state, error=query.error, issuer=query.iss or None
    )


async def help_page(call: Call[None]) -> Reply:
    return page(call, "access/help.html")


async def terminal(call: Call[None]) -> Reply:
    """Shows the page on which a person lets a terminal in. Opening it decides nothing."""
    query, waiting = call.query, None
    if query.code:
        deps_of(call).sign_in_rate.spend(call.principal.id)
        with suppress(NotFound):
            waiting = deps_of(call).sign_in.terminals.look(query.code)
    return page(call, "access/terminal.html", terminal=waiting, code=query.code, done=query.done, days=DAYS)


def own_path(path: str) -> str:
    """Returns the path if it is one of this console; a link must not redirect to another site."""
    unfit = not path.startswith("/") or path.startswith("//") or "\\" in path or not path.isprintable()
    return "/" if unfit else path


ROUTES = (
    Route("GET", "/start", start, PUBLIC, summary="First log-in", query=StartPageQuery),
    Route("GET", "/login", login, PUBLIC, summary="Log-in", query=LoginQuery),
    Route("GET", "/login/with/{provider}", login_with, PUBLIC, summary="To a provider", query=LoginQuery),
    Route(
        "GET", "/login/back/{provider}", login_back, PUBLIC, summary="Back from a provider", query=ReturnQuery
    ),
    Route("GET", "/login/terminal", terminal, ANY_USER, summary="Authorize a terminal", query=TerminalQuery),
    Route("GET", "/me", me, ANY_USER, summary="One's own account"),
    Route("GET", "/help", help_page, ANY_USER, summary="Help"),
)
