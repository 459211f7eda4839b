"""Defines what a row of the route table holds, what a handler is given, and what it may answer."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from msgspec import Struct

from simpletuner_fleet.core.bounds import LATEST_AT
from simpletuner_fleet.core.errors import Forbidden
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.http.access.auth import Principal
from simpletuner_fleet.http.edge.streams import Stream

Body = TypeVar("Body")

KIB = 1024
DEFAULT_MAX_BODY_BYTES = 256 * KIB
EARLIEST = datetime(1, 1, 1, tzinfo=UTC).timestamp()


class Access(StrEnum):
    """Says who may call a route, where a permission of an API token does not decide that."""

    PUBLIC = "public"
    WORKER = "worker"
    """A worker's own token in `X-Worker-Token`."""
    UPLOAD = "upload"
    """A worker's token, or one attempt's in `X-Upload-Token`."""
    ANY_USER = "any_user"
    """Any valid API token or session, whatever it may do."""


PUBLIC, WORKER, UPLOAD, ANY_USER = Access.PUBLIC, Access.WORKER, Access.UPLOAD, Access.ANY_USER


class Call(Struct, Generic[Body], eq=False):
    """Holds one request, checked and decoded."""

    route: "Route"
    app: Any
    """What the composition root handed to `build_app`."""
    principal: Principal
    body: Body
    query: Any
    """An instance of the row's `query` type; None if the row has none."""
    path: Mapping[str, str]
    ip: str
    headers: Mapping[str, str]
    """Their names are in lower case."""
    secure: bool
    """Came over TLS, to us or to a trusted proxy."""
    ends: Callable[[], str] = str
    """Tells the addresses at both ends of its connection."""
    ignored: Sequence[str] = ()
    """Names the parameters that mean nothing here; its answer tells them."""

    @property
    def actor(self) -> Actor:
        return Actor(self.principal.id, self.principal.name, self.ip)

    def has_expired(self, now: float) -> bool:
        """Tells whether the caller's token or session has ended by itself since they called.

        It may while a stream is read. A session that was used meanwhile goes on, and its browser, once cut off, comes
        again.
        """
        ends = (self.principal.expires_at, self.principal.session_ends_at)
        return any(at is not None and at <= now for at in ends)

    def require(self, permission: str) -> None:
        """Raises Forbidden for a caller without this permission, where it depends on more than the route."""
        if not self.principal.can(permission):
            raise Forbidden(permission)


class Reply(Struct, frozen=True, kw_only=True):
    """Answers with a status, headers or cookies beside its body.

    A body of bytes goes out as it is, all else as JSON.
    """

    body: Any = None
    status: int | None = None
    """The row's own status is used where this is None."""
    headers: dict[str, str] = {}
    content_type: str = "application/json"
    cookies: tuple[str, ...] = ()
    """Each becomes a Set-Cookie of its own."""


Answer = Struct | dict[str, Any] | Reply | Stream | None
"""None answers 204 without a body."""
Handler = Callable[[Call[Any]], Awaitable[Answer]]


class Route(Struct, frozen=True):
    method: str
    path: str
    """Literal segments and `{names}`."""
    handler: Handler
    permission: str | Access
    body: Any = None
    """The type to decode; `bytes` takes the body raw as application/octet-stream; None reads no body."""
    answer: Any = None
    summary: str = ""
    status: int = 200
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    query: Any = None
    tags: tuple[str, ...] = ()
    body_required: bool = True
    stream: bool = False
    """Answers with events or a long body; such a row has no HEAD."""
    pieces: bool = False
    """A raw body is handed over as it arrives, as an `Incoming`."""
    prompt: bool = False
    """The handler runs without a task: it uses nothing that needs one, as `asyncio.timeout` does."""
    form: bool = False
    """A raw body comes as a form, as other programs' protocols have it."""
    scim: bool = False
    """It speaks SCIM, whose JSON has a name of its own."""
    reword: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Makes a body of this row's type out of one that was not understood; raises where it cannot."""
    in_parts: bool = False
    """A form may come in parts, too, as `curl -F` sends it."""
    rest: bool = False
    """The last name of the path takes all that follows, slashes too."""
    older: bool = False
    """A request of the older guides: a parameter that means nothing here is named in the answer's head, not refused."""


def rfc3339(at: float | None) -> str | None:
    """Returns the time as RFC 3339.

    A time outside the calendar, from a broken clock or a hostile worker, becomes the nearest one inside it.
    """
    if at is None or at != at:
        return None
    moment = datetime.fromtimestamp(min(max(at, EARLIEST), LATEST_AT), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
