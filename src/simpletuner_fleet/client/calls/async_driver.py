"""Takes the steps of a call with asyncio, so that other tasks run meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import httpcore2
import httpx2

from simpletuner_fleet.client.calls.call import Give, OpenStream, Read, Received, Send, Sleep, Step, Steps
from simpletuner_fleet.client.calls.caller import RouteCaller
from simpletuner_fleet.client.calls.sync_driver import identity, unpacking
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.errors import unreachable
from simpletuner_fleet.client.time_limits import COMING_S, TIMEOUT_S, BoundedContent
from simpletuner_fleet.client.troubles import TooSlow
from simpletuner_fleet.client.trust import TrustError, Warn, context_for_async

Answered = TypeVar("Answered")


class _Heard:
    """Notes whether anything has come while something was waited for."""

    anything = False


_heard: ContextVar[_Heard | None] = ContextVar("heard", default=None)


@asynccontextmanager
async def within(whole_s: float) -> AsyncIterator[None]:
    """Limits all that is sent and received meanwhile; a timeout of a single read begins anew with each byte.

    Who was silent is told apart from who drips, as by the client that blocks.
    """
    heard = _Heard()
    token = _heard.set(heard)
    try:
        async with asyncio.timeout(whole_s):
            yield
    except TimeoutError:
        if heard.anything:
            raise httpx2.ReadTimeout("too slow") from TooSlow()
        raise httpx2.ReadTimeout("no answer in time") from None
    finally:
        _heard.reset(token)


class _HearingBackend(httpcore2.AsyncNetworkBackend):
    """Makes connections that note what comes."""

    def __init__(self, inner: httpcore2.AsyncNetworkBackend) -> None:
        self._inner = inner

    async def connect_tcp(
        self, host: str, port: int, *args: Any, **more: Any
    ) -> httpcore2.AsyncNetworkStream:
        return _HearingStream(await self._inner.connect_tcp(host, port, *args, **more))

    async def connect_unix_socket(self, path: str, *args: Any, **more: Any) -> httpcore2.AsyncNetworkStream:
        return _HearingStream(await self._inner.connect_unix_socket(path, *args, **more))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


class _HearingStream(httpcore2.AsyncNetworkStream):
    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - as it is called
        data = await self._inner.read(max_bytes, timeout)
        heard = _heard.get()
        if heard and data:
            heard.anything = True
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as it is called
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(self, *args: Any, **more: Any) -> httpcore2.AsyncNetworkStream:
        return _HearingStream(await self._inner.start_tls(*args, **more))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class HearingClient(httpx2.AsyncClient):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for transport in (self._transport, *self._mounts.values()):
            if isinstance(transport, httpx2.AsyncHTTPTransport):
                # As in `LimitedClient`.
                pool: Any = transport._pool
                pool._network_backend = _HearingBackend(pool._network_backend)


async def _content_of(answer: httpx2.Response) -> bytes:
    whole = BoundedContent()
    async for piece in answer.aiter_bytes():
        whole.add(piece)
    return whole.joined()


class AwaitedAnswer:
    """Holds the streamed answer that one run of steps has open."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._pieces: AsyncIterator[bytes] | None = None
        self._piece_s = TIMEOUT_S

    async def open(self, client: httpx2.AsyncClient, step: OpenStream) -> Received:
        await self.close()
        self._piece_s = step.read_timeout_s
        timeout = httpx2.Timeout(min(TIMEOUT_S, step.read_timeout_s), read=step.read_timeout_s)
        async with within(step.read_timeout_s):
            answer = await self._stack.enter_async_context(
                client.stream("GET", step.target, headers=step.headers, timeout=timeout)
            )
            if answer.status_code >= 300:
                return Received(answer.status_code, answer.headers, await _content_of(answer))
        self._pieces = answer.aiter_bytes()
        return Received(answer.status_code, answer.headers, b"")

    async def read(self) -> bytes | None:
        if self._pieces is None:
            return None
        async with within(self._piece_s):
            return await anext(self._pieces, None)

    async def close(self) -> None:
        self._pieces = None
        await self._stack.aclose()


class AsyncDriver:
    def __init__(self, caller: RouteCaller, where: ConnectionSettings, warn: Warn) -> None:
        self._caller, self._where, self._warn = caller, where, warn
        self._clients: dict[str, httpx2.AsyncClient] = {}

    async def _client(self) -> httpx2.AsyncClient:
        """Returns the client for the present address; checks the server's identity before any token is sent."""
        url = self._caller.url
        if url not in self._clients:
            try:
                context = await context_for_async(url, self._where.trust, self._warn)
            except TrustError as error:
                raise unreachable(error, url) from None
            except OSError as error:
                raise httpx2.ConnectError(str(error)) from error
            self._clients.setdefault(
                url,
                HearingClient(
                    base_url=url, headers=identity(self._where), timeout=TIMEOUT_S, verify=context or True
                ),
            )
        return self._clients[url]

    async def close(self) -> None:
        while self._clients:
            await self._clients.popitem()[1].aclose()

    async def run(self, steps: Steps[Answered]) -> Answered:
        result: list[Answered] = []
        async for _ in self.iterate(steps, result):
            pass
        return result[0]

    async def iterate(
        self, steps: Steps[Answered], ended: list[Answered] | None = None
    ) -> AsyncGenerator[Any, None]:
        """Yields the values that the steps give; what the steps return is appended to `ended`."""
        held = AwaitedAnswer()
        result: Any = None
        error: httpx2.TransportError | None = None
        try:
            while True:
                try:
                    step = steps.throw(error) if error else steps.send(result)
                except StopIteration as end:
                    if ended is not None:
                        ended.append(end.value)
                    return
                result = error = None
                if isinstance(step, Give):
                    yield step.value
                    continue
                try:
                    with unpacking():
                        result = await self._take(step, held)
                except httpx2.TransportError as failure:
                    error = failure
        finally:
            await held.close()
            steps.close()

    async def _take(self, step: Step, held: AwaitedAnswer) -> Any:
        match step:
            case Send():
                client = await self._client()
                async with (
                    within(step.whole_s or step.timeout_s + COMING_S),
                    client.stream(
                        step.method,
                        step.target,
                        content=step.body,
                        headers=step.headers,
                        timeout=step.timeout_s,
                    ) as answer,
                ):
                    return Received(answer.status_code, answer.headers, await _content_of(answer))
            case OpenStream():
                return await held.open(await self._client(), step)
            case Read():
                return await held.read()
            case Sleep():
                await asyncio.sleep(step.seconds)
        return None
