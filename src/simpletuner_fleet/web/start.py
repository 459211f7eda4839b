"""The first minute: the one-time link, the log-in, one's own account, help."""

from msgspec import Struct

from simpletuner_fleet.core.errors import LinkUsed
from simpletuner_fleet.http.deps import deps
from simpletuner_fleet.http.routes import ANY_USER, PUBLIC, Call, Reply, Route
from simpletuner_fleet.orchestrator import logins
from simpletuner_fleet.orchestrator.logins import StartKey
from simpletuner_fleet.web.page import page


class StartQuery(Struct, kw_only=True):
    k: str = ""


class LoginQuery(Struct, kw_only=True):
    next: str = "/"


async def start(call: Call[None]) -> Reply:
    """Looking does not use the link up; choosing a name and password does."""
    found = await _good_for(call) if call.query.k else None
    return page(
        call,
        "start.html",
        key=call.query.k if found else "",
        used=bool(call.query.k and not found),
        whose=found.user.name if found and found.user else "",
    )


async def _good_for(call: Call[None]) -> StartKey | None:
    try:
        return await logins.start_key(deps(call).fleet, call.query.k)
    except LinkUsed:
        return None


async def login(call: Call[None]) -> Reply:
    return page(call, "login.html", following=own_path(call.query.next))


async def me(call: Call[None]) -> Reply:
    return page(call, "me.html")


async def help_page(call: Call[None]) -> Reply:
    return page(call, "help.html")


def own_path(path: str) -> str:
    """A place of this console: a link from elsewhere must not lead on to elsewhere."""
    unfit = not path.startswith("/") or path.startswith("//") or "\\" in path or not path.isprintable()
    return "/" if unfit else path


ROUTES = (
    Route("GET", "/start", start, PUBLIC, summary="First log-in", query=StartQuery),
    Route("GET", "/login", login, PUBLIC, summary="Log-in", query=LoginQuery),
    Route("GET", "/me", me, ANY_USER, summary="One's own account"),
    Route("GET", "/help", help_page, ANY_USER, summary="Help"),
)
