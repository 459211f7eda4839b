"""Makes a call: sends it again where that is safe, turns to another orchestrator, and reads the answer."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlencode

import httpx2
import msgspec

from simpletuner_fleet.client.answers import JSON, NOT_PACKED, is_ours
from simpletuner_fleet.client.calls.call import OpenStream, Received, RouteCall, Send, Sleep, Steps
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.errors import ClientError, fail, problem_error, unreachable
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.client.time_limits import TIMEOUT_S, is_in_vain
from simpletuner_fleet.client.troubles import UNREACHABLE, ForeignAnswer
from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.languages import _
from simpletuner_fleet.protocol.problems import read_problem

LEAST_S = 1.0
"""How long an answer is waited for at least, however little time whoever asks has left."""
RESEND_AFTER_S = (0.5, 1.0, 2.0, 4.0)
LONGEST_RETRY_AFTER_S = 30.0
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout)
REPEATABLE = ("GET", "PUT", "DELETE")
FOUND = 200
TOO_MANY, UNAVAILABLE = 429, 503
Answered = TypeVar("Answered")


class RouteCaller:
    """Makes calls to one fleet: it knows the addresses of the orchestrators, and which of them is used now."""

    def __init__(self, where: ConnectionSettings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._urls = [where.url, *where.further_urls]
        self.monotonic = monotonic

    @property
    def url(self) -> str:
        return self._urls[0]

    def turn_away(self) -> None:
        self._urls = [*self._urls[1:], self._urls[0]]

    def call(
        self,
        call: RouteCall[Answered],
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
        repeatable: bool = False,
        until: float | None = None,
    ) -> Steps[Answered]:
        """Makes a call. `repeatable` says that a request which changes something has the same effect if sent twice.

        `until` is when (monotonic) whoever asks gives up: no answer is waited for beyond it, and nothing is sent again.
        """
        headers = {"Accept": "application/json"}
        content = None
        if body is not None:
            content = msgspec.json.encode(_known(call, "body", body))
            headers["Content-Type"] = "application/json"
        if key:
            headers["Idempotency-Key"] = key
        request = Send(call.method, target_of(call, path, query), content, headers, TIMEOUT_S)
        may_repeat = repeatable or key is not None or call.method in REPEATABLE
        received = yield from self.send(request, may_repeat, until)
        return self._read(call, received)

    def send(self, request: Send, repeatable: bool, until: float | None = None) -> Steps[Received]:
        """Sends until there is a final answer. Raises what the orchestrator says, or that it cannot be reached."""
        pauses, turns = iter(RESEND_AFTER_S), len(self._urls) - 1
        while True:
            if until is not None:
                left_s = max(LEAST_S, until - self.monotonic())
                request = request._replace(timeout_s=min(request.timeout_s, left_s), whole_s=left_s)
            try:
                received = yield request
            except httpx2.TransportError as error:
                not_sent = isinstance(error, NOT_SENT)
                may_help = not_sent or (repeatable and not is_in_vain(error))
                pause_s = next(pauses, None) if may_help else None
                failure: ClientError = unreachable(error, self.url)
                elsewhere = not_sent
            else:
                if _is_document(received):
                    return received  # type: ignore[no-any-return]
                failure = self.refusal(received)
                pause_s = self._pause_after(received, failure, pauses, repeatable)
                elsewhere = failure.code == NotLeader.code
            if until is not None and self.monotonic() + (pause_s or 0.0) >= until:
                raise failure
            if elsewhere and turns:
                turns -= 1
                self.turn_away()
            elif pause_s is None:
                raise failure
            else:
                yield Sleep(pause_s)

    def _pause_after(
        self, received: Received, failure: ClientError, pauses: Iterator[float], repeatable: bool
    ) -> float | None:
        """Returns the pause before another try, or None if the answer is final. A 429 was not carried out."""
        passes = failure.trouble.exit == UNREACHABLE and (repeatable or received.status == TOO_MANY)
        pause_s = next(pauses, None) if passes else None
        wanted = received.headers.get("retry-after", "")
        if pause_s is not None and wanted.isdecimal():
            return max(pause_s, min(float(wanted), LONGEST_RETRY_AFTER_S))
        return pause_s

    def refusal(self, received: Received) -> ClientError:
        """Returns the error for an answer; one in a foreign format says nothing about the request itself."""
        if read_problem(received.status, received.content) is None:
            return unreachable(ForeignAnswer(received.status), self.url)
        return problem_error(received.status, msgspec.json.decode(received.content))

    def open(
        self,
        call: RouteCall[Any],
        *,
        path: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        accept: str,
        read_timeout_s: float,
    ) -> Steps[Received]:
        """Opens a stream of this content type; the caller handles transport errors."""
        target = target_of(call, path, query)
        try:
            received: Received = yield OpenStream(target, {"Accept": accept, **NOT_PACKED}, read_timeout_s)
        except NOT_SENT:
            self.turn_away()
            raise
        if received.status == FOUND and is_ours(received.headers, accept):
            return received
        failure = self.refusal(received)
        if failure.code == NotLeader.code:
            self.turn_away()
        raise failure

    def _read(self, call: RouteCall[Answered], received: Received) -> Answered:
        try:
            return msgspec.json.decode(received.content, type=call.answer)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise fail(
                _("%(url)s gave an answer that this client does not know", url=self.url),
                f"{call.method} {call.path}: {error}",
                _("use a client of the server's version, and verify the URL and port"),
                "E_NOT_AN_ORCHESTRATOR",
                UNREACHABLE,
            ) from None


def _is_document(received: Received) -> bool:
    return received.status < 300 and is_ours(received.headers, JSON)


def target_of(call: RouteCall[Any], path: Mapping[str, str] | None, query: Mapping[str, Any] | None) -> str:
    place = call.path
    for name, value in (path or {}).items():
        place = place.replace("{" + name + "}", segment(value))
    given = {name: value for name, value in _known(call, "query", query or {}).items() if value is not None}
    return f"{place}?{urlencode(given, doseq=True)}" if given else place


def _known(call: RouteCall[Any], part: str, given: Mapping[str, Any]) -> dict[str, Any]:
    names = getattr(call, part)
    unknown = [] if names is None else sorted(set(given) - set(names))
    if unknown:
        raise TypeError(f"{call.method} {call.path} takes no {', '.join(unknown)}")
    return dict(given)
