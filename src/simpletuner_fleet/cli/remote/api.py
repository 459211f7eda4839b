"""Calls the orchestrator's HTTP API for the commands: JSON in, JSON out, failures as messages."""

import argparse
import json
import secrets
import shlex
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from urllib.parse import urlencode

import httpx2

from simpletuner_fleet import __version__
from simpletuner_fleet.cli.frame.errors import CliError, CurlPrinted, ExitCode, fail
from simpletuner_fleet.cli.frame.output import tell
from simpletuner_fleet.cli.frame.text import clean
from simpletuner_fleet.cli.remote.problems import problem_of
from simpletuner_fleet.client import connection
from simpletuner_fleet.client.answers import JSON, NOT_PACKED, content_type_of, is_ours
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.files.file_api import SEALING_TIMEOUT_S, leads_elsewhere
from simpletuner_fleet.client.time_limits import (
    TIMEOUT_S,
    LimitedClient,
    Pace,
    extensions,
    is_in_vain,
    joined,
    pieces,
    read_whole,
    within,
)
from simpletuner_fleet.client.troubles import ForeignAnswer, of_connection_error
from simpletuner_fleet.client.trust import CONNECT_TIMEOUT_S, TrustError, context_for, trusting_nobody
from simpletuner_fleet.core.errors import NotLeader, StoreUnavailable
from simpletuner_fleet.languages import _
from simpletuner_fleet.protocol.problems import read_problem

CONTENT_TIMEOUT_S = 60.0
LEAST_S = 1.0
"""How long an answer is waited for at least, however little time the user has left."""
RESEND_AFTER_S = (0.5, 1.0, 2.0, 4.0)
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout)
WILL_PASS = (StoreUnavailable.code, NotLeader.code)
Json = Any


class Api:
    def __init__(
        self,
        where: ConnectionSettings,
        *,
        curl: bool = False,
        quiet: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.where = where
        self._curl, self._quiet, self._sleep = curl, quiet, sleep
        self._client: LimitedClient | None = None
        self.until: float | None = None
        """When (monotonic) the user gives up; no answer is waited for beyond it."""

    def __enter__(self) -> "Api":
        return self

    def __exit__(self, *_: object) -> None:
        if self._client:
            self._client.close()

    @property
    def url(self) -> str:
        """Returns the address that is used now."""
        return self.where.url

    @property
    def client(self) -> LimitedClient:
        """Returns the client, made when first needed: the server's identity is checked before the token is sent."""
        if self._client is None:
            context = self._context()
            headers = {"User-Agent": f"simpletuner-cli/{__version__}", "Accept": "application/json"}
            headers |= connection.authorization(self.where)
            self._client = LimitedClient(
                base_url=self.where.url,
                headers=headers,
                timeout=TIMEOUT_S,
                verify=context or trusting_nobody(),
            )
        return self._client

    def _context(self) -> ssl.SSLContext | None:
        """Returns the TLS context; moves on to the next address where the present one cannot be reached."""
        for left in reversed(range(1 + len(self.where.further_urls))):
            try:
                return context_for(
                    self.where.url, self.where.trust, self._warn, self._within(CONNECT_TIMEOUT_S)
                )
            except (TrustError, OSError) as error:
                if isinstance(error, TrustError) or not left:
                    raise CliError(of_connection_error(error, self.where.url)) from None
                self._turn_away()
        raise AssertionError("unreachable")

    def _within(self, timeout_s: float) -> float:
        """Returns the timeout, cut to the time that the user has left."""
        left_s = self._left_s()
        return timeout_s if left_s is None else min(timeout_s, left_s)

    def _left_s(self) -> float | None:
        return None if self.until is None else max(LEAST_S, self.until - time.monotonic())

    def _turn_away(self) -> None:
        """Makes the next address the one that is used from now on."""
        if self.where.further_urls:
            following, *rest = (*self.where.further_urls, self.where.url)
            self.where = self.where._replace(url=following, further_urls=tuple(rest))
            if self._client:
                self._client.close()
            self._client = None

    def get(self, path: str, query: dict[str, Any] | None = None, *, lookup: bool = False) -> Json:
        """Sends a GET. A `lookup` only serves another call, and is sent even where `--curl` prints that one."""
        return self.call("GET", path, query=query, lookup=lookup)

    def items(
        self, path: str, key: str, query: dict[str, Any] | None = None, *, lookup: bool = False
    ) -> list[dict[str, Any]]:
        """Returns the list that an answer holds under its key."""
        rows: list[dict[str, Any]] = self.page(path, key, query, lookup=lookup)[key]
        return rows

    def page(
        self, path: str, key: str, query: dict[str, Any] | None = None, *, lookup: bool = False
    ) -> dict[str, Any]:
        answer = self.get(path, query, lookup=lookup)
        if not isinstance(answer, dict) or not isinstance(answer.get(key), list):
            raise self._foreign(_("JSON without a list of %(key)s", key=key))
        return answer

    def post(self, path: str, body: Json = None, *, timeout_s: float = TIMEOUT_S) -> Json:
        return self.call("POST", path, body=body, timeout_s=timeout_s)

    def patch(self, path: str, body: Json) -> Json:
        return self.call("PATCH", path, body=body)

    def put(self, path: str, body: Json) -> Json:
        return self.call("PUT", path, body=body)

    def put_bytes(self, path: str, query: dict[str, Any], content: Iterable[bytes], length: int) -> Json:
        """Uploads in pieces, so that no whole part stays in memory. The caller handles transport errors."""
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
        target, timeout = _with_query(path, query), httpx2.Timeout(TIMEOUT_S, read=SEALING_TIMEOUT_S)
        try:
            return self._read(self.client.put(target, content=content, headers=headers, timeout=timeout))
        except httpx2.DecodingError:
            raise self._unreadable() from None
        except NOT_SENT:
            self._turn_away()
            raise

    def delete(self, path: str) -> Json:
        return self.call("DELETE", path)

    def call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, Any] | None = None,
        body: Json = None,
        headers: dict[str, str] | None = None,
        lookup: bool = False,
        timeout_s: float = TIMEOUT_S,
    ) -> Json:
        target = _with_query(path, query)
        if self._curl and not lookup:
            self._print_curl(method, target, body, headers or {})
        for left in reversed(range(1 + len(self.where.further_urls))):
            try:
                answer = self.client.request(
                    method,
                    target,
                    json=body,
                    headers=headers,
                    timeout=self._within(timeout_s),
                    extensions=extensions(self._left_s()),
                )
            except httpx2.DecodingError:
                raise self._unreadable() from None
            except httpx2.TransportError as error:
                if not left or not isinstance(error, NOT_SENT):
                    raise CliError(of_connection_error(error, self.where.url)) from None
                self._turn_away()
                continue
            if not left or not _does_not_lead(answer):
                return self._read(answer)
            self._turn_away()
        raise AssertionError("unreachable")

    def post_once(self, path: str, body: Json, key: str) -> Json:
        """Sends again while the answer is lost or the server unavailable; the key keeps it from running twice."""
        for pause_s in (*RESEND_AFTER_S, None):
            try:
                return self.call("POST", path, body=body, headers={"Idempotency-Key": key})
            except CliError as error:
                sent = not isinstance(error.__context__, httpx2.ConnectError)
                is_final = not will_pass(error) or is_in_vain(error.__context__)
                if pause_s is None or is_final or (pause_s == RESEND_AFTER_S[0] and not sent):
                    raise
                self.note(_why_again(error))
                self._sleep(pause_s)
        raise AssertionError("unreachable")

    @contextmanager
    def stream(
        self,
        path: str,
        query: dict[str, Any] | None = None,
        *,
        read_timeout_s: float,
        headers: dict[str, str] | None = None,
        kind: str = "",
    ) -> Iterator[httpx2.Response]:
        """Yields an answer that comes in pieces; `kind` is the content type that it must have.

        The caller handles transport errors while reading.
        """
        target = _with_query(path, query)
        if self._curl:
            self._print_curl("GET", target, None, {})
        timeout = httpx2.Timeout(self._within(TIMEOUT_S), read=read_timeout_s)
        all_headers = {"Accept": "*/*", **NOT_PACKED, **(headers or {})}
        try:
            with self.client.stream("GET", target, timeout=timeout, headers=all_headers) as answer:
                if answer.status_code >= 400 or leads_elsewhere(answer.status_code, all_headers):
                    with within(read_timeout_s):
                        whole = read_whole(answer)
                    self._read(whole)
                if kind and not is_ours(answer.headers, kind):
                    raise self._of_another_kind(answer, kind)
                yield answer
        except httpx2.DecodingError:
            raise self._unreadable() from None
        except NOT_SENT:
            self._turn_away()
            raise

    def content(self, path: str, query: dict[str, Any] | None = None, *, kind: str) -> bytes:
        """Returns the whole of an answer that is not JSON; `kind` is the content type that it must have."""
        try:
            with self.stream(path, query, read_timeout_s=CONTENT_TIMEOUT_S, kind=kind) as answer:
                return joined(pieces(answer.iter_bytes(), CONTENT_TIMEOUT_S, Pace()))
        except httpx2.TransportError as error:
            raise CliError(of_connection_error(error, self.where.url)) from None

    def note(self, text: str) -> None:
        if not self._quiet:
            tell(text)

    def _warn(self, text: str) -> None:
        """Prints a security warning, even for users who asked for quiet."""
        tell(text)

    def _read(self, answer: httpx2.Response) -> Json:
        if answer.status_code >= 400:
            raise problem_of(answer.status_code, answer.content, self.where)
        if answer.status_code >= 300:
            raise self._foreign(
                _("a redirection to %(place)s", place=answer.headers.get("location") or _("nowhere"))
            )
        if not is_ours(answer.headers, JSON):
            raise self._of_another_kind(answer, "JSON")
        try:
            return answer.json()
        except (ValueError, RecursionError):
            raise self._of_another_kind(answer, "JSON") from None

    def _of_another_kind(self, answer: httpx2.Response, expected: str) -> CliError:
        kind = answer.headers.get("content-type") or _("something")
        if content_type_of(answer.headers) == expected:
            return CliError(of_connection_error(ForeignAnswer(answer.status_code), self.where.url))
        return self._foreign(_("%(kind)s instead of %(expected)s", kind=kind, expected=expected))

    def _unreadable(self) -> CliError:
        return self._foreign(_("something that cannot be unpacked"))

    def _foreign(self, what: str) -> CliError:
        return fail(
            _("%(url)s is not a SimpleTuner orchestrator", url=self.where.url),
            _("it answered with %(what)s", what=what),
            _("verify orchestrator URL and port"),
            "E_NOT_AN_ORCHESTRATOR",
            ExitCode.UNREACHABLE,
        )

    def _print_curl(self, method: str, target: str, body: Json, headers: dict[str, str]) -> NoReturn:
        words = ["curl", "-s"]
        if method != "GET":
            words += ["-X", method]
        trust = self.where.trust
        if trust.ca_cert:
            words += ["--cacert", shlex.quote(trust.ca_cert)]
        elif trust.no_verify:
            words.append("-k")
        words += [shlex.quote(self.where.url + target), "-H", '"Authorization: Bearer $ADMIN_TOKEN"']
        for name, value in headers.items():
            words += ["-H", shlex.quote(f"{name}: {value}")]
        if body is not None:
            words += ["-H", "'Content-Type: application/json'", "-d", shlex.quote(json.dumps(body))]
        print(" ".join(words))
        raise CurlPrinted


def will_pass(error: CliError) -> bool:
    """Tells whether a server that restarts, or a proxy before it, answers so: the next try may succeed."""
    return error.trouble.exit == ExitCode.UNREACHABLE or error.trouble.code in WILL_PASS


def _why_again(error: CliError) -> str:
    if isinstance(error.__context__, httpx2.TransportError):
        return _("no answer; sending the same request again (it cannot be executed twice) …")
    return _(
        "%(what)s (%(why)s); sending the same request again (it cannot be executed twice) …",
        what=clean(error.trouble.what),
        why=clean(error.trouble.why),
    )


def new_key() -> str:
    """Returns an idempotency key: a request with it is carried out once, however often it is sent."""
    return f"cli-{secrets.token_urlsafe(18)}"


def _does_not_lead(answer: httpx2.Response) -> bool:
    problem = read_problem(answer.status_code, answer.content) if answer.status_code >= 400 else None
    return problem is not None and problem.code == NotLeader.code


def _with_query(path: str, query: dict[str, Any] | None) -> str:
    parameters = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path


@contextmanager
def connected(args: argparse.Namespace) -> Iterator[Api]:
    """Opens the API of the server that this command talks to."""
    where = connection.find(args)
    with Api(where, curl=getattr(args, "curl", False), quiet=getattr(args, "quiet", False)) as api:
        for note in where.notes:
            api.note(note)
        yield api
