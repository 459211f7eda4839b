"""Transfers files straight to and from the storage, by links that the orchestrator has signed.

That way is used where it is offered and left where it fails. What answers there is not the orchestrator: nothing it
says is an order, and every trouble means that files go through the orchestrator for a while. Whoever has a link may
use it, so no log or error repeats one.
"""

import asyncio
import logging
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx2

from simpletuner_fleet.agent.wire.errors import no_answer
from simpletuner_fleet.agent.wire.part_connections import NoAnswer, Part, PartConnections, PartTimeouts

log = logging.getLogger(__name__)

CONNECT_S, STEP_S, ANSWER_S = 5.0, 15.0, 60.0
PAUSE_S = 600.0
"""For how long the way is left alone once it has failed."""
NOTHING_CAME = (httpx2.RequestError, httpx2.InvalidURL)
ERROR_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")


class DirectFailed(Exception):
    """The storage could not be reached, or said no. The error's message holds no link."""


class DirectConnections:
    """Keeps the connections straight to the storage, shared by all attempts of a worker.

    What one attempt has found out, the others need not try.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_until = float("-inf")
        self._connections: dict[str, PartConnections] = {}
        self._http: httpx2.AsyncClient | None = None
        self._context: ssl.SSLContext | None = None
        self.step_s = STEP_S

    @property
    def is_open(self) -> bool:
        return self._clock() >= self._left_until

    def leave(self, why: str) -> None:
        self._left_until = self._clock() + PAUSE_S
        log.warning(
            "the storage cannot be used from here (%s): files go through the orchestrator for %d minutes",
            why,
            PAUSE_S // 60,
        )

    async def close(self) -> None:
        for connections in self._connections.values():
            connections.close()
        if self._http:
            await self._http.aclose()

    async def put(self, url: str, headers: Mapping[str, str], part: Part) -> None:
        """Raises DirectFailed; what is wrong with the file is raised as it is."""
        connections = await self._connections_to(url)
        address = urlsplit(url)
        # The length is told by whoever sends the bytes.
        sent = {name: value for name, value in headers.items() if name.lower() != "content-length"}
        timeouts = PartTimeouts(connect_s=CONNECT_S, step_s=self.step_s, answer_s=ANSWER_S)
        try:
            status, content = await connections.put(f"{address.path}?{address.query}", sent, part, timeouts)
        except NoAnswer as error:
            raise DirectFailed(str(error)) from None
        except ValueError:
            raise DirectFailed("the headers of the link are none") from None
        if status != 200:
            raise DirectFailed(_refusal(status, content))

    @asynccontextmanager
    async def get(self, url: str, offset: int) -> AsyncIterator[AsyncIterator[bytes]]:
        """Raises DirectFailed before there is anything to read, and Unreachable where it breaks off later."""
        if self._http is None:
            timeout = httpx2.Timeout(STEP_S, connect=CONNECT_S)
            self._http = httpx2.AsyncClient(verify=await self._trust(), timeout=timeout, trust_env=False)
        headers = {"Accept-Encoding": "identity", **({"Range": f"bytes={offset}-"} if offset else {})}
        try:
            request = self._http.build_request("GET", url, headers=headers)
            async with asyncio.timeout(CONNECT_S + ANSWER_S):
                response = await self._http.send(request, stream=True)
        except (*NOTHING_CAME, TimeoutError) as error:
            raise DirectFailed(str(error) or type(error).__name__) from None
        except ValueError:
            raise DirectFailed("the link cannot be read") from None
        try:
            if response.status_code != (206 if offset else 200):
                raise DirectFailed(f"HTTP {response.status_code}")
            yield response.aiter_raw()
        except NOTHING_CAME as error:
            raise no_answer(error) from error
        finally:
            await response.aclose()

    async def _connections_to(self, url: str) -> PartConnections:
        try:
            address = urlsplit(url)
            named = address.scheme in ("http", "https") and address.hostname and address.port != 0
        except ValueError as error:
            raise DirectFailed("the link names no server") from error
        if not named:
            raise DirectFailed("the link names no server")
        origin = f"{address.scheme}://{address.netloc}"
        if origin not in self._connections:
            context = await self._trust() if address.scheme == "https" else None
            self._connections.setdefault(origin, PartConnections(origin, context))
        return self._connections[origin]

    async def _trust(self) -> ssl.SSLContext:
        """Returns a context that trusts whom this machine trusts: we know no fingerprint of a bucket."""
        if self._context is None:
            self._context = await asyncio.to_thread(ssl.create_default_context)
        return self._context


def _refusal(status: int, content: bytes) -> str:
    match = ERROR_CODE.search(content)
    return f"HTTP {status}, {match[1].decode()}" if match else f"HTTP {status}"
