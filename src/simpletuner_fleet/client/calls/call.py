"""What a call is made of: a row of the route table, and the steps that a driver takes for it.

The steps know no sockets and no clock, so that the client that blocks and the one that awaits are one and the same.
"""

from collections.abc import Generator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

Answered = TypeVar("Answered")


class RouteCall(Struct, Generic[Answered], frozen=True):
    """One row of the server's route table."""

    method: str
    path: str
    answer: type[Answered]
    query: tuple[str, ...] | None = ()
    body: tuple[str, ...] | None = ()
    """The names that may be given; None: any."""


class Send(NamedTuple):
    """Sends a request, and is given a `Received` with all of its answer."""

    method: str
    target: str
    body: bytes | None
    headers: dict[str, str]
    timeout_s: float


class OpenStream(NamedTuple):
    """Opens an answer that comes in pieces. At most one is open; another one takes its place."""

    target: str
    headers: dict[str, str]
    read_timeout_s: float | None


class Read(NamedTuple):
    """Waits for the next piece of what is open; None at its end."""


class Sleep(NamedTuple):
    seconds: float


class Give(NamedTuple):
    """Hands a value to whoever iterates."""

    value: Any


class Received(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes
    """Empty for what is open."""


Step = Send | OpenStream | Read | Sleep | Give
Steps = Generator[Step, Any, Answered]
"""Transport errors are thrown into it at the step that met them."""
