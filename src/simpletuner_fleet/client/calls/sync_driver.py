"""Takes the steps of a call and blocks meanwhile."""

import warnings
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any, TypeVar

import httpx2

from simpletuner_fleet import __version__
from simpletuner_fleet.client import interruption
from simpletuner_fleet.client.calls.call import Give, OpenStream, Read, Received, Send, Sleep, Step, Steps
from simpletuner_fleet.client.calls.caller import RouteCaller
from simpletuner_fleet.client.connection import ConnectionSettings, authorization
from simpletuner_fleet.client.errors import unreachable
from simpletuner_fleet.client.time_limits import (
    TIMEOUT_S,
    LimitedClient,
    extensions,
    pieces,
    read_whole,
    within,
)
from simpletuner_fleet.client.trust import TrustError, Warn, context_for
from simpletuner_fleet.languages import _

Answered = TypeVar("Answered")
USER_AGENT = f"simpletuner-client/{__version__}"


class OpenAnswer:
    """Holds the streamed answer that one run of steps has open."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._pieces: Iterator[bytes] = iter(())

    def open(self, client: LimitedClient, step: OpenStream) -> Received:
        self.close()
        timeout = httpx2.Timeout(min(TIMEOUT_S, step.read_timeout_s), read=step.read_timeout_s)
        answer = self._stack.enter_context(
            client.stream("GET", step.target, headers=step.headers, timeout=timeout)
        )
        if answer.status_code >= 300:
            with within(step.read_timeout_s):
                return Received(answer.status_code, answer.headers, read_whole(answer).content)
        self._pieces = pieces(answer.iter_bytes(), step.read_timeout_s)
        return Received(answer.status_code, answer.headers, b"")

    def read(self) -> bytes | None:
        return next(self._pieces, None)

    def close(self) -> None:
        self._pieces = iter(())
        self._stack.close()


class SyncDriver:
    def __init__(self, caller: RouteCaller, where: ConnectionSettings, warn: Warn) -> None:
        self._caller, self._where, self._warn = caller, where, warn
        self._clients: dict[str, LimitedClient] = {}
        self._making = Lock()

    @property
    def client(self) -> LimitedClient:
        """Returns the client for the present address; checks the server's identity before any token is sent."""
        with self._making:  # of two that threads make at once nobody would close the first
            return self._client()

    def _client(self) -> LimitedClient:
        url = self._caller.url
        if url not in self._clients:
            try:
                context = context_for(url, self._where.trust, self._warn)
            except TrustError as error:
                raise unreachable(error, url) from None
            except OSError as error:
                raise httpx2.ConnectError(str(error)) from error
            self._clients[url] = LimitedClient(
                base_url=url, headers=identity(self._where), timeout=TIMEOUT_S, verify=context or True
            )
        return self._clients[url]

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()

    def run(self, steps: Steps[Answered]) -> Answered:
        walk = self.iterate(steps)
        while True:
            try:
                next(walk)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def iterate(self, steps: Steps[Answered]) -> Generator[Any, None, Answered]:
        """Yields the values that the steps give."""
        held = OpenAnswer()
        result: Any = None
        error: httpx2.TransportError | None = None
        try:
            while True:
                try:
                    step = steps.throw(error) if error else steps.send(result)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                result = error = None
                if isinstance(step, Give):
                    yield step.value
                    continue
                try:
                    with unpacking():
                        result = self._take(step, held)
                except httpx2.TransportError as failure:
                    error = failure
        finally:
            held.close()
            steps.close()

    def _take(self, step: Step, held: OpenAnswer) -> Any:
        match step:
            case Send():
                answer = self.client.request(
                    step.method,
                    step.target,
                    content=step.body,
                    headers=step.headers,
                    timeout=step.timeout_s,
                    extensions=extensions(step.whole_s),
                )
                return Received(answer.status_code, answer.headers, answer.content)
            case OpenStream():
                return held.open(self.client, step)
            case Read():
                return held.read()
            case Sleep():
                interruption.pause(step.seconds)
        return None


@contextmanager
def unpacking() -> Iterator[None]:
    """Makes an answer that cannot be unpacked a failure of the way to the orchestrator, which sends none."""
    try:
        yield
    except httpx2.DecodingError as error:
        raise httpx2.RemoteProtocolError(
            _("the answer cannot be unpacked: %(error)s", error=error)
        ) from error


def warn_user(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def identity(where: ConnectionSettings) -> dict[str, str]:
    return {"User-Agent": USER_AGENT, **authorization(where)}
