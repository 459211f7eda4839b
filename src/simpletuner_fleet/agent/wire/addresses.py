"""Holds the addresses at which an agent finds its orchestrators, and the connections that are open to each."""

import re
import ssl
from collections.abc import Awaitable, Callable, Iterator

import httpx2

from simpletuner_fleet.agent.wire.call_connections import CallConnections
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable
from simpletuner_fleet.agent.wire.part_connections import PartConnections
from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.core.leadership import is_outdated

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 15.0
TERM = re.compile(r"[0-9]{1,18}")
MakeContext = Callable[[], Awaitable[ssl.SSLContext | None]]


class AddressConnections:
    """Holds the connections that are open to one address."""

    def __init__(self, url: str, context: ssl.SSLContext | None) -> None:
        self.url = url.rstrip("/")
        self.context = context
        self.http = httpx2.AsyncClient(
            verify=context if context is not None else False,
            timeout=httpx2.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            limits=httpx2.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=60),
            trust_env=False,
        )
        self.control = CallConnections(self.url, context)
        """For what a worker and its jobs live by: nothing of `bulk` ever stands in its way."""
        self.bulk = CallConnections(self.url, context)
        self.parts = PartConnections(self.url, context)

    def keep_connections_for(self, idle_s: float) -> None:
        self.control.keep_idle_s = self.bulk.keep_idle_s = idle_s

    async def close(self) -> None:
        self.parts.close()
        self.control.close()
        self.bulk.close()
        await self.http.aclose()


class Address:
    """Names an address where an orchestrator may be. Whom to trust there is found out when it is first used."""

    def __init__(
        self, url: str, make_context: MakeContext, connections: AddressConnections | None = None
    ) -> None:
        self.url = url.rstrip("/")
        self._make_context = make_context
        self.open_connections = connections

    async def connections(self) -> AddressConnections:
        if self.open_connections is None:
            self.open_connections = AddressConnections(self.url, await self._make_context())
        return self.open_connections


class Addresses:
    """Tracks all addresses of orchestrators, which of them answered last, and the newest term that any has named."""

    def __init__(self, addresses: list[Address]) -> None:
        self._all = addresses
        self._current = 0
        self._newest_term = 0

    @property
    def current(self) -> Address:
        return self._all[self._current]

    def in_turn(self) -> Iterator[Address]:
        """Yields the current one, then the others."""
        first = self._current
        for distance in range(len(self._all)):
            yield self._all[(first + distance) % len(self._all)]

    def turn_from(self, address: Address) -> None:
        """Switches to the next address, unless another call has done so already."""
        if self.current is address:
            self._current = (self._current + 1) % len(self._all)

    def keep(self, address: Address) -> None:
        self._current = self._all.index(address)

    @property
    def open_connections(self) -> list[AddressConnections]:
        return [each.open_connections for each in self._all if each.open_connections]

    def check_term(self, said: str | None) -> None:
        """Raises Unreachable where the answer is from a leader that was replaced since: such an answer says nothing."""
        term = int(said) if said and TERM.fullmatch(said) else None
        if is_outdated(term, self._newest_term):
            cause = OSError("an orchestrator answered that does not lead any more")
            raise Unreachable(cause, refused=False)
        self._newest_term = max(self._newest_term, term or 0)


def may_be_elsewhere(error: Refused | Unreachable) -> bool:
    """Tells whether another address may do better: nobody answered, or one that does not lead."""
    return isinstance(error, Unreachable) or error.code == NotLeader.code


def worst_of(errors: list[Refused | Unreachable]) -> Refused | Unreachable:
    """Returns what to report after every address has failed. `refused` is set only if it is so everywhere."""
    last = errors[-1]
    for error in errors:
        if isinstance(error, Refused):
            return error
    unreachable = [error for error in errors if isinstance(error, Unreachable)]
    if isinstance(last, Unreachable) and len(errors) > 1:
        return Unreachable(
            last.cause,
            refused=all(error.refused for error in unreachable),
            answered=any(error.answered for error in unreachable),
        )
    return last
