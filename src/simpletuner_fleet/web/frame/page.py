"""Renders a page for its user, language and theme, with the headers that keep it to our own origin."""

from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from msgspec.structs import replace

from simpletuner_fleet import __version__
from simpletuner_fleet.http.access.networks import is_loopback
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.deps import visibility_scope_of
from simpletuner_fleet.http.edge.problem_words import language_for
from simpletuner_fleet.http.edge.routes import Answer, Call, Reply, Route, rfc3339
from simpletuner_fleet.languages import LANGUAGES, Words, spoken_in, translator
from simpletuner_fleet.web.frame.cookies import cookies_of
from simpletuner_fleet.web.frame.environment import environment
from simpletuner_fleet.web.frame.navigation import navigation
from simpletuner_fleet.web.frame.policy import POLICY
from simpletuner_fleet.web.guide.help_links import help_link

THEMES = ("auto", "light", "dark")
THEME_COOKIE = "simpletuner_theme"
PAGE_HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "vary": "cookie, accept-language, x-live",
}
ONLY_REGIONS = "x-live"
"""The header by which an open page asks for the parts of it that change."""
_newest_event: ContextVar[int] = ContextVar("simpletuner_newest_event", default=0)


def noting_newest_event(row: Route) -> Route:
    """Returns the row with a look at the newest event first.

    Whatever happens after that look may be missing in the page, which then asks again as soon as it hears of events.
    """
    handler = row.handler

    @wraps(handler)
    async def note_first(call: Call[Any]) -> Answer:
        _newest_event.set(deps_of(call).hub.event_id)
        return await handler(call)

    return replace(row, handler=note_first)


def language_of(call: Call[Any]) -> str:
    return language_for(call.headers, call.principal)


def spoken(call: Call[Any]) -> AbstractContextManager[Words]:
    """Makes sentences within the block use the reader's language, as the page around them will."""
    return spoken_in(translator(language_of(call)))


def theme_of(call: Call[Any]) -> str:
    theme = cookies_of(call.headers).get(THEME_COOKIE, "")
    return theme if theme in THEMES else "auto"


def page(call: Call[Any], template: str, *, status: int = 200, **context: Any) -> Reply:
    """Renders a template with what every page needs. `title` and the rest come from the page itself."""
    language, deps = language_of(call), deps_of(call)
    with spoken_in(translator(language)):
        text = (
            environment()
            .get_template(template)
            .render(
                language=language,
                languages=LANGUAGES,
                theme=theme_of(call),
                principal=call.principal,
                caller=call.principal.id,
                navigation=navigation(
                    call.principal, call.route.path, in_teams=bool(visibility_scope_of(call).teams)
                ),
                here=here(call),
                help=help_link(call.route.path),
                now=rfc3339(deps.fleet.clock.now()),
                newest_event=_newest_event.get(),
                insecure=deps.beyond_loopback and not call.secure and not is_loopback(call.ip),
                version=__version__,
                only_regions=ONLY_REGIONS in call.headers,
                **context,
            )
        )
    return Reply(
        body=text.encode(), status=status, content_type="text/html; charset=utf-8", headers=PAGE_HEADERS
    )


def here(call: Call[Any]) -> str:
    """Returns the path of this page, to return to after a log-in or a change of language."""
    path = call.route.path
    for name, value in call.path.items():
        path = path.replace(f"{{{name}}}", value)
    return path


def with_query(path: str, **values: Any) -> str:
    present = {name: value for name, value in values.items() if value not in (None, "", [])}
    return f"{path}?{urlencode(present, doseq=True)}" if present else path
