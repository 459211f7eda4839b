"""Defines one request and the way to answer it, which is all that the edge knows of the connection."""

import re
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simpletuner_fleet.http.edge.streams import EventStream

RawHeaders = list[tuple[bytes, bytes]]

HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
UNSAFE_IN_VALUES = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")


class CallerGone(Exception):
    """The caller hung up before the request was whole or the answer was written."""


class HeadMemory:
    """Keeps what was worked out from headers that a connection repeats byte for byte, for its next requests."""

    __slots__ = ("caller",)

    def __init__(self) -> None:
        self.caller: Any = None
        """What the edge knows of whoever sends them, as far as it cannot change while the connection lasts."""


class Exchange(ABC):
    """An exchange is one request, and the way to answer it.

    The request's head is here when the exchange begins; its body may still be on its way.
    """

    __slots__ = ("begun", "headers", "in_task", "memory", "method", "path", "peer", "query", "secure")

    def __init__(
        self, method: str, path: str, query: bytes, headers: dict[str, str], peer: str, secure: bool
    ) -> None:
        self.method = method
        self.path = path
        """The path stands as it was sent, with its percent signs."""
        self.query = query
        self.headers = headers
        """Names are in lower case; a doubled header is joined by a comma, so that a doubled Host or token fits nothing."""
        self.peer = peer
        """The address at the other end of the connection, which may be a proxy's."""
        self.secure = secure
        """Came over TLS to this very server."""
        self.in_task = True
        """False while the request is walked through within the callback that read it, where no task runs."""
        self.begun = False
        """Whether an answer has begun, so that no other one can be sent."""
        self.memory: HeadMemory | None = None
        """Of headers that are repeated; None for those that were never seen before."""

    @property
    def ends(self) -> str:
        """Returns the addresses at both ends of the connection, as `protocol.paths.ends_of` writes them, or ''."""
        return ""

    @abstractmethod
    def whole_body(self) -> bytes | None:
        """Returns the body if all of it is here already, without waiting."""

    @abstractmethod
    async def receive(self) -> tuple[bytes, bool]:
        """Returns the next piece of the body and whether more may follow. Raises CallerGone."""

    @abstractmethod
    def respond(self, head: bytes, body: bytes) -> None:
        """Sends a whole answer: `head` has the status line and headers, without length and date."""

    @abstractmethod
    def begin(self, head: bytes) -> None:
        """Begins an answer whose body follows in pieces; to a HEAD none follows, whatever length the head has."""

    @abstractmethod
    async def write(self, piece: bytes) -> None:
        """Sends a piece of the body; waits while the reader does not keep up. Raises CallerGone."""

    @abstractmethod
    def finish(self) -> None:
        """Ends an answer that was begun."""

    @abstractmethod
    def on_lost(self, callback: Callable[[], object]) -> None:
        """Calls back once if the caller leaves before the answer is finished."""

    @abstractmethod
    def hand_over(self, head: bytes, stream: "EventStream") -> None:
        """Begins an answer that `stream` writes from now on, for as long as it likes, without any task."""

    @abstractmethod
    def cut(self, *, at_once: bool) -> None:
        """Ends the connection without ending the answer; `at_once` drops what is still buffered too."""


Application = Callable[[Exchange], Coroutine[Any, Any, None]]


@types.coroutine
def into_task() -> Generator[None, None, None]:
    """Lets an application go on in a task where its next step needs one, as `asyncio.timeout` does."""
    yield


class UnfitHeader(Exception):
    """A header that would break the answer apart. It is a defect of ours, never sent."""


def head_of(status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    lines = [status_line(status)]
    for name, value in headers:
        if not HEADER_NAME.fullmatch(name) or UNSAFE_IN_VALUES.search(value):
            raise UnfitHeader(repr(name))
        lines += (name, b": ", value, b"\r\n")
    return b"".join(lines)


def status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")
