"""The ASGI application: match, know the caller, read, decode, call, encode. One straight walk per request."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from simpletuner_fleet.core.errors import (
    FleetError,
    InvalidToken,
    NetworkNotAllowed,
    Unauthenticated,
)
from simpletuner_fleet.http import problems
from simpletuner_fleet.http.auth import (
    ANONYMOUS,
    LOCAL_ADMIN,
    Authenticator,
    Credentials,
    Principal,
    SessionEnded,
    WorkerAuthFailure,
    check_permission,
    failed_proof,
)
from simpletuner_fleet.http.bodies import (
    JSON,
    RAW,
    CallerGone,
    Incoming,
    check_content_type,
    decode_json,
    read_body,
)
from simpletuner_fleet.http.hosts import (
    AllowedHosts,
    comes_from_browser,
    is_foreign,
    names_loopback,
    proves_own_page,
)
from simpletuner_fleet.http.limits import Buckets, RateLimits, address_key
from simpletuner_fleet.http.networks import Networks, client_address, is_loopback
from simpletuner_fleet.http.problem_words import asks_for_a_person, in_words_of
from simpletuner_fleet.http.problems import ForeignOrigin, HostNotAllowed, OriginMissing
from simpletuner_fleet.http.routes import Access, Answer, Call, Reply, Route
from simpletuner_fleet.http.sessions import session_secret
from simpletuner_fleet.http.sse_response import RawHeaders, Stream
from simpletuner_fleet.http.table import CompiledRoute, RouteTable
from simpletuner_fleet.http.wire import (
    answer_lifespan,
    raw_path,
    read_headers,
    security_headers,
    send_whole,
)

CREDENTIAL_HEADERS = ("authorization", "x-api-key", "x-worker-token", "x-upload-token")

Observe = Callable[[str, str, int, float], None]
"""Told (method, path of the row, status, seconds) after every answer; streams count when they begin."""
ProblemPage = Callable[[problems.ProblemAnswer, Mapping[str, str], str, Principal], Reply | None]
"""Given (problem, headers of the request, path, who asked as far as it is known): what a person who asked for a page
sees; None: the problem itself."""

log = logging.getLogger(__name__)


class EdgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    trust_loopback: bool = False
    """Has no effect beyond a loopback bind, whatever the command line let through."""
    beyond_loopback: bool = False
    """Bound to more than loopback: any name or address is accepted as Host."""
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: str = ""
    worker_networks: str = ""
    """`SIMPLETUNER_WORKER_NETWORKS`; empty allows every network."""
    tls: bool = False
    body_timeout_s: float = 60.0
    limits: RateLimits = RateLimits()


class Edge:
    def __init__(
        self,
        routes: Sequence[Route],
        deps: Any,
        *,
        credentials: Credentials,
        settings: EdgeSettings,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        on_worker_auth_failure: WorkerAuthFailure | None,
        observe: Observe | None,
        problem_page: ProblemPage | None,
    ) -> None:
        self._table = RouteTable(routes)
        self._deps = deps
        self._settings = settings
        self._trusts_loopback = settings.trust_loopback and not settings.beyond_loopback
        self._authenticator = Authenticator(credentials, now)
        self._hosts = AllowedHosts(settings.allowed_hosts, settings.beyond_loopback)
        self._proxies = Networks.parse(settings.trusted_proxies)
        self._worker_networks = Networks.parse(settings.worker_networks)
        self._monotonic = monotonic
        self._on_worker_auth_failure = on_worker_auth_failure
        self._observe = observe
        self._problem_page = problem_page
        limits = settings.limits
        self._worker_rate = Buckets(limits.worker, monotonic)
        self._user_rate = Buckets(limits.user, monotonic)
        self._public_rate = Buckets(limits.public, monotonic)
        self._failed_proofs = Buckets(limits.failed_proof, monotonic)
        self._noted_failures = Buckets(limits.noted_failure, monotonic)
        self._noted_overall = Buckets(limits.noted_failures_overall, monotonic)
        self._streams: dict[Stream, str] = {}
        """Each with the hash of the credential it was opened with."""
        self._ending = False
        self._encoder = msgspec.json.Encoder()
        self._page_headers = security_headers(settings.tls)
        self._api_headers = [*self._page_headers, (b"cache-control", b"no-store")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._answer_http(scope, receive, send)
        elif scope["type"] == "lifespan":
            await answer_lifespan(receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def end_streams(self) -> None:
        """For the server's `before_shutdown`: every open stream ends cleanly, and none begins any more."""
        self._ending = True
        for stream in list(self._streams):
            stream.end("server shutting down")

    def end_streams_of(self, token_hashes: Collection[str]) -> None:
        """Whoever was logged out or lost a token sees nothing more."""
        for stream, opened_with in list(self._streams.items()):
            if opened_with in token_hashes:
                stream.end("this credential is no longer valid")

    async def _answer_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = self._monotonic()
        path, status, headers = "", 500, {}
        try:
            headers = read_headers(scope["headers"])
            peer = (scope.get("client") or ("",))[0]
            ip = client_address(peer, headers.get("x-forwarded-for"), self._proxies)
            self._check_host(headers)
            compiled, parameters = self._table.find(scope["method"], raw_path(scope))
            path = compiled.row.path
            call = await self._admit(compiled, parameters, scope, receive, headers, peer, ip)
            answer = await compiled.row.handler(call)
            status = await self._send_answer(answer, call, scope, receive, send, began)
        except CallerGone:
            status = 499
        except (
            Exception
        ) as error:  # the outermost frame of a request: it becomes a problem and, if ours, a log entry
            problem = problems.problem_of(error)
            status = problem.status
            await self._send_problem(problem, scope, headers, send)
        finally:
            if self._observe and status:
                self._observe(scope["method"], path, status, self._monotonic() - began)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        host = headers.get("host")
        if not self._hosts.holds(host):
            raise HostNotAllowed(f"The server does not answer to the host '{(host or '')[:100]}'.")

    async def _admit(
        self,
        compiled: CompiledRoute,
        parameters: dict[str, str],
        scope: Scope,
        receive: Receive,
        headers: dict[str, str],
        peer: str,
        ip: str,
    ) -> Call[Any]:
        row = compiled.row
        if compiled.of_workers and self._worker_networks and not self._worker_networks.holds(ip):
            refused = NetworkNotAllowed(f"Workers may not connect from {ip}.")
            await self._note_worker_failure(ip, row.path, refused, headers)
            raise refused
        if is_foreign(scope["method"], headers, self._hosts):
            raise ForeignOrigin
        secure = scope.get("scheme") == "https" or self._proxy_says_https(peer, headers)
        principal = scope["user"] = await self._prove(row, headers, peer, ip, secure)
        if principal.kind == "user" and not proves_own_page(scope["method"], headers, self._hosts):
            raise OriginMissing
        if not isinstance(row.permission, Access):
            check_permission(principal, row.permission)
        self._spend(principal, ip)
        query = compiled.query_decoder(scope["query_string"]) if compiled.query_decoder else None
        body = await self._read(compiled, principal, receive, headers) if row.body else None
        return Call(
            route=row,
            app=self._deps,
            principal=principal,
            body=body,
            query=query,
            path=parameters,
            ip=ip,
            headers=Headers(scope=scope),
            secure=secure,
        )

    def _proxy_says_https(self, peer: str, headers: Mapping[str, str]) -> bool:
        return (
            headers.get("x-forwarded-proto") == "https" and bool(self._proxies) and self._proxies.holds(peer)
        )

    async def _prove(
        self, row: Route, headers: dict[str, str], peer: str, ip: str, secure: bool
    ) -> Principal:
        if row.permission is Access.PUBLIC:
            return ANONYMOUS
        cookie = None if any(name in headers for name in CREDENTIAL_HEADERS) else headers.get("cookie")
        secret = session_secret(cookie, secure)
        if secret and row.permission not in (Access.WORKER, Access.UPLOAD):
            return await self._signed_in(secret, ip)
        try:
            if row.permission is Access.WORKER:
                return await self._authenticator.worker(headers)
            if row.permission is Access.UPLOAD:
                return await self._authenticator.uploader(headers)
            if self._trusts_loopback and is_local_call(peer, headers):
                return LOCAL_ADMIN
            return await self._authenticator.user(headers)
        except (InvalidToken, Unauthenticated) as error:
            if row.permission in (Access.WORKER, Access.UPLOAD):
                await self._note_worker_failure(ip, row.path, error, headers)
            # After the look-up on purpose: behind one address a bad machine must not lock out the good ones.
            # Who shows nothing guesses at nothing: a page that leads to the log-in may be asked for often.
            guessed = isinstance(error, InvalidToken)
            (self._failed_proofs if guessed else self._public_rate).spend(address_key(ip))
            raise

    async def _signed_in(self, secret: str, ip: str) -> Principal:
        """A page left open over night asks again and again: that is not a guess at somebody's secret."""
        try:
            return await self._authenticator.session(secret)
        except SessionEnded:
            self._public_rate.spend(address_key(ip))
            raise

    async def _note_worker_failure(
        self, ip: str, path: str, error: FleetError, headers: Mapping[str, str]
    ) -> None:
        """Rarely enough that a flood cannot fill the audit log."""
        if self._on_worker_auth_failure is None or self._noted_failures.take(address_key(ip)):
            return
        if not self._noted_overall.take(""):
            await self._on_worker_auth_failure(failed_proof(ip, path, error, headers))

    def _spend(self, principal: Principal, ip: str) -> None:
        if principal.kind == "anonymous":
            self._public_rate.spend(address_key(ip))
        elif principal.kind in ("worker", "upload"):
            self._worker_rate.spend(principal.id)
        else:
            self._user_rate.spend(principal.id)

    async def _read(
        self, compiled: CompiledRoute, principal: Principal, receive: Receive, headers: dict[str, str]
    ) -> Any:
        row = compiled.row
        if row.pieces:
            check_content_type(headers.get("content-type"), RAW, False)
            return Incoming(
                receive, headers.get("content-length"), row.max_body_bytes, self._settings.body_timeout_s
            )
        body = await read_body(
            receive, headers.get("content-length"), row.max_body_bytes, self._settings.body_timeout_s
        )
        if not body and not row.body_required:
            return None
        form_is_json = principal.kind in ("token", "loopback") and not comes_from_browser(headers)
        check_content_type(headers.get("content-type"), RAW if row.body is bytes else JSON, form_is_json)
        return decode_json(body, compiled.body_decoder) if compiled.body_decoder else body

    async def _send_answer(
        self, answer: Answer, call: Call[Any], scope: Scope, receive: Receive, send: Send, began: float
    ) -> int:
        row = call.route
        if isinstance(answer, Reply):
            return await self._send_reply(answer, row.status, scope, send)
        if answer is None:
            status, body, headers = 204, b"", self._headers_for(scope, "", {})
        elif isinstance(answer, msgspec.Struct | dict):
            status, body = row.status, self._encoder.encode(answer)
            headers = self._headers_for(scope, JSON, {})
        else:
            return await self._run_stream(answer, call, scope, receive, send, began)
        await send_whole(send, scope, status, headers, body)
        return status

    async def _send_reply(
        self, reply: Reply, status: int, scope: Scope, send: Send, more: Sequence[tuple[bytes, bytes]] = ()
    ) -> int:
        status = reply.status or status
        body = reply.body if isinstance(reply.body, bytes) else self._encode(reply.body)
        headers = self._headers_for(scope, reply.content_type, reply.headers)
        headers += [(b"set-cookie", cookie.encode("latin-1")) for cookie in reply.cookies]
        await send_whole(send, scope, status, [*headers, *more], body)
        return status

    def _encode(self, body: Any) -> bytes:
        return b"" if body is None else self._encoder.encode(body)

    async def _run_stream(
        self, stream: Stream, call: Call[Any], scope: Scope, receive: Receive, send: Send, began: float
    ) -> int:
        """Returns 0: it has been observed at its beginning, and how long it lived is no latency."""
        self._streams[stream] = call.principal.token_hash
        if self._ending:
            stream.end("server shutting down")
        if self._observe:
            self._observe(scope["method"], call.route.path, 200, self._monotonic() - began)
        try:
            await stream.respond(scope, receive, send, list(self._page_headers))
        finally:
            del self._streams[stream]
        return 0

    def _headers_for(self, scope: Scope, content_type: str, own: Mapping[str, str]) -> RawHeaders:
        headers = list(self._api_headers if scope["path"].startswith("/api/") else self._page_headers)
        if own:
            named = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in own.items()}
            headers = [*(pair for pair in headers if pair[0] not in named), *named.items()]
        if content_type:
            headers.append((b"content-type", content_type.encode("latin-1")))
        return headers

    async def _send_problem(
        self, problem: problems.ProblemAnswer, scope: Scope, asked: Mapping[str, str], send: Send
    ) -> None:
        page = self._page_for(problem, scope, asked)
        if page:
            with suppress(RuntimeError):
                await self._send_reply(page, problem.status, scope, send, list(problem.headers))
            return
        if asks_for_a_person(asked):
            problem = in_words_of(problem, asked, reader(scope))
        headers = [*self._api_headers, *problem.headers, (b"content-type", problems.CONTENT_TYPE.encode())]
        # An answer that had already begun cannot become another one: the connection ends instead.
        with suppress(RuntimeError):
            await send_whole(send, scope, problem.status, headers, problem.body)

    def _page_for(
        self, problem: problems.ProblemAnswer, scope: Scope, asked: Mapping[str, str]
    ) -> Reply | None:
        path = raw_path(scope)
        wants_page = scope["method"] in ("GET", "HEAD") and "text/html" in asked.get("accept", "")
        if self._problem_page is None or not wants_page or path.startswith("/api/"):
            return None
        try:
            return self._problem_page(problem, asked, path, reader(scope))
        except Exception:  # still the outermost frame: the page is lost, the problem behind it must not be
            log.exception("the page for a problem with status %d could not be made", problem.status)
            return None


def build_app(
    routes: Sequence[Route],
    deps: Any,
    *,
    credentials: Credentials,
    settings: EdgeSettings | None = None,
    now: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
    on_worker_auth_failure: WorkerAuthFailure | None = None,
    observe: Observe | None = None,
    problem_page: ProblemPage | None = None,
) -> Edge:
    return Edge(
        routes,
        deps,
        credentials=credentials,
        settings=settings or EdgeSettings(),
        now=now,
        monotonic=monotonic,
        on_worker_auth_failure=on_worker_auth_failure,
        observe=observe,
        problem_page=problem_page,
    )


def reader(scope: Scope) -> Principal:
    """Who asked; anonymous where the request failed before that was known."""
    found: Principal = scope.get("user", ANONYMOUS)
    return found


def is_local_call(peer: str, headers: Mapping[str, str]) -> bool:
    """From this very machine, by no browser, through no proxy, and showing no other credential."""
    return (
        is_loopback(peer)
        and names_loopback(headers.get("host"))
        and not comes_from_browser(headers)
        and not any(
            name in headers for name in (*CREDENTIAL_HEADERS, "cookie", "forwarded", "via", "x-real-ip")
        )
        and not any(name.startswith("x-forwarded-") for name in headers)
    )
