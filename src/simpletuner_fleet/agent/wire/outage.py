"""Finds out what a refused connection means: the orchestrator is dead, or something on the way to it is."""

import asyncio
from typing import NamedTuple
from urllib.parse import urlsplit

from simpletuner_fleet.core.workers.outage import Knock, is_dead
from simpletuner_fleet.protocol.messages import Registered
from simpletuner_fleet.protocol.paths import server_of

KNOCK_TIMEOUT_S = 2.0
MOST_ADDRESSES = 16


class Door(NamedTuple):
    host: str
    port: int


class Outage:
    """Finds out whether a refused connection means that the orchestrator is dead.

    It connects without sending anything: who answers may be a stranger, and must not get the worker's token.
    """

    def __init__(self) -> None:
        self._own_socket: Door | None = None
        self._others: list[Door] = []

    def learn(self, ends: str, answer: Registered) -> None:
        """Notes the ways to the orchestrator, from how a registration went and what was answered.

        If both ends name the same connection, nobody stands in between, and its other end is the orchestrator's own.
        """
        seen, answered = server_of(ends), server_of(answer.ends)
        is_direct = bool(ends) and ends == answer.ends
        self._own_socket = Door(*seen) if seen and is_direct else None
        doors = [Door(*way) for way in (seen, answered) if way]
        doors += [door for door in map(_door_of, answer.addresses) if door]
        known = dict.fromkeys([*doors, *self._others])
        self._others = [door for door in known if door != self._own_socket][:MOST_ADDRESSES]

    async def is_certain(self, without_answer_s: float) -> bool:
        """Tells, when a connection was refused, whether the orchestrator is dead."""
        if self._own_socket is None:
            return False
        own_socket, *others = await asyncio.gather(*map(knock, (self._own_socket, *self._others)))
        return is_dead(own_socket, others, without_answer_s)


async def knock(door: Door) -> Knock:
    try:
        async with asyncio.timeout(KNOCK_TIMEOUT_S):
            _, writer = await asyncio.open_connection(door.host, door.port)
    except ConnectionRefusedError:
        return Knock.REFUSED
    except (OSError, TimeoutError):
        return Knock.SILENT
    writer.transport.abort()
    return Knock.OPEN


def _door_of(url: str) -> Door | None:
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    return Door(parts.hostname, port) if parts.hostname else None
