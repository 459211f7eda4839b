"""The first minute: the one-time link, the log-in, one's own account, help."""

from msgspec import Struct

from simpletuner_fleet.core.errors import LinkUsed
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import ANY_USER, PUBLIC, Call, Reply, Route
from simpletuner_fleet.orchestrator.people import logins
from simpletuner_fleet.orchestrator.people.logins import StartKey
from simpletuner_fleet.web.frame.page import page


class StartPageQuery(Struct, kw_only=True):
    k: str = ""


class LoginQuery(Struct, kw_only=True):
    next: str = "/"


async def start(call: Call[None]) -> Reply:
    """Looking does not use the link up; choosing a name and password does."""
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
    return page(call, "access/login.html", following=own_path(call.query.next))


async def me(call: Call[None]) -> Reply:
    caller = call.principal
    sessions = await logins.sessions_of(deps_of(call).fleet, caller.id) if caller.kind == "user" else []
    return page(call, "access/me.html", sessions=sessions, session_id=logins.session_id)


async def help_page(call: Call[None]) -> Reply:
    return page(call, "access/help.html")


def own_path(path: str) -> str:
    """Returns a place of this console: a link from elsewhere must not lead on to elsewhere."""
    unfit = not path.startswith("/") or path.startswith("//") or "\\" in path or not path.isprintable()
    return "/" if unfit else path


ROUTES = (
    Route("GET", "/start", start, PUBLIC, summary="First log-in", query=StartPageQuery),
    Route("GET", "/login", login, PUBLIC, summary="Log-in", query=LoginQuery),
    Route("GET", "/me", me, ANY_USER, summary="One's own account"),
    Route("GET", "/help", help_page, ANY_USER, summary="Help"),
)
