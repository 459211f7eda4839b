"""Defines what a call is made of: a row of the route table, and the steps that a driver takes for it.

The steps know no sockets and no clock, so that the blocking client and the asyncio client share one implementation.
"""

from collections.abc import Generator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

Answered = TypeVar("Answered")


class RouteCall(Struct, Generic[Answered], frozen=True):
    """Describes one row of the server's route table."""

    method: str
    path: str
    answer: type[Answered]
    query: tuple[str, ...] | None = ()
    body: tuple[str, ...] | None = ()
    """The names that may be given; None: any."""


class Send(NamedTuple):
    """Asks the driver to send a request; the result is a `Received` with the whole answer."""

    method: str
    target: str
    body: bytes | None
    headers: dict[str, str]
    timeout_s: float
    """How long the answer may be silent."""
    whole_s: float | None = None
    """How long the whole call may take, where whoever asks has set a time."""


class OpenStream(NamedTuple):
    """Asks the driver to open an answer that comes in pieces. At most one is open; a new one replaces it."""

    target: str
    headers: dict[str, str]
    read_timeout_s: float
    """Within this time the stream is open, and within it each piece is there."""


class Read(NamedTuple):
    """Asks the driver for the next piece of the open answer; the result is None at its end."""


class Sleep(NamedTuple):
    seconds: float


class Give(NamedTuple):
    """Asks the driver to yield a value to whoever iterates over the call."""

    value: Any


class Received(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes
    """Empty for what is open."""


Step = Send | OpenStream | Read | Sleep | Give
Steps = Generator[Step, Any, Answered]
"""Transport errors are thrown into it at the step that met them."""
