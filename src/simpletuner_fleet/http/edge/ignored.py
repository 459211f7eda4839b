"""Tells a caller who uses older names which of its parameters mean nothing here."""

from collections.abc import Sequence
from urllib.parse import quote

from msgspec.structs import replace

from simpletuner_fleet.http.edge.exchange import RawHeaders
from simpletuner_fleet.http.edge.routes import Answer, Reply

IGNORED_HEADER = "x-ignored-parameters"
MOST_NAMES = 16
MOST_NAME_CHARS = 64


def naming_ignored(answer: Answer, ignored: Sequence[str]) -> Reply:
    """Returns the same answer, with these names in a header."""
    more = {IGNORED_HEADER: _listed(ignored)}
    if isinstance(answer, Reply):
        return replace(answer, headers={**answer.headers, **more})
    if answer is None:
        return Reply(status=204, headers=more, content_type="")
    return Reply(body=answer, headers=more)


def ignored_header(ignored: Sequence[str]) -> RawHeaders:
    return [(IGNORED_HEADER.encode(), _listed(ignored).encode())] if ignored else []


def _listed(ignored: Sequence[str]) -> str:
    """Lists the names. They come from outside, so they are quoted as in an address, and cut."""
    return ", ".join(quote(name[:MOST_NAME_CHARS], safe="") for name in ignored[:MOST_NAMES])
