"""The ASGI application: match, know the caller, read, decode, call, encode. One straight walk per request."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from simpletuner_fleet.core.errors import (
    InvalidToken,
    NetworkNotAllowed,
    NotFound,
    Unauthenticated,
)
from simpletuner_fleet.http import problems
from simpletuner_fleet.http.auth import (
    ANONYMOUS,
    LOCAL_ADMIN,
    Authenticator,
    Credentials,
    Principal,
    WorkerAuthFailure,
    check_permission,
)
from simpletuner_fleet.http.bodies import (
    JSON,
    RAW,
    CallerGone,
    Incoming,
    check_content_type,
    decode_json,
    query_decoder,
    read_body,
)
from simpletuner_fleet.http.hosts import AllowedHosts, comes_from_browser, is_foreign, names_loopback
from simpletuner_fleet.http.limits import Buckets, RateLimits, address_key
from simpletuner_fleet.http.networks import Networks, client_address, is_loopback
from simpletuner_fleet.http.problems import ForeignOrigin, HostNotAllowed, MethodNotAllowed
from simpletuner_fleet.http.routes import Access, Answer, Call, Reply, Route
from simpletuner_fleet.http.sse_response import RawHeaders, Stream

WORKER_PATHS = "/api/workers/"
CREDENTIAL_HEADERS = ("authorization", "x-api-key", "x-worker-token", "x-upload-token")
MAX_PATH_PARAMETER_CHARS = 200
MAX_REST_CHARS = 1024
STRICT_CSP = b"default-src 'none'; frame-ancestors 'none'"

Observe = Callable[[str, str, int, float], None]
"""Told (method, path of the row, status, seconds) after every answer; streams count when they begin."""


class EdgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    trust_loopback: bool = False
    """Has no effect beyond a loopback bind, whatever the command line let through."""
    beyond_loopback: bool = False
    """Bound to more than loopback: any literal address is accepted as Host."""
    allowed_hosts: tuple[str, ...] = ()
    trusted_proxies: str = ""
    worker_networks: str = ""
    """`SIMPLETUNER_WORKER_NETWORKS`; empty allows every network."""
    tls: bool = False
    body_timeout_s: float = 60.0
    limits: RateLimits = RateLimits()


class CompiledRoute:
    """A row with everything prepared that does not depend on the request."""

    __slots__ = ("body_decoder", "of_workers", "query_decoder", "row", "segments")

    def __init__(self, row: Route) -> None:
        self.row = row
        self.segments = tuple(row.path.split("/")[1:])
        self.of_workers = row.path.startswith(WORKER_PATHS)
        self.body_decoder = None if row.body in (None, bytes) else msgspec.json.Decoder(row.body)
        self.query_decoder = query_decoder(row.query) if row.query else None

    def parameters(self, segments: Sequence[str]) -> dict[str, str] | None:
        if not self.row.rest:
            return self._matched(segments)
        own = len(self.segments) - 1
        found = self._matched([*segments[:own], "rest"]) if len(segments) > own else None
        tail = [path_parameter(segment, MAX_REST_CHARS) for segment in segments[own:]]
        if found is None or None in tail:
            return None
        return {**found, self.segments[-1][1:-1]: "/".join(segment for segment in tail if segment)}

    def _matched(self, segments: Sequence[str]) -> dict[str, str] | None:
        found = {}
        for pattern, segment in zip(self.segments, segments, strict=True):
            if pattern.startswith("{"):
                value = path_parameter(segment)
                if value is None:
                    return None
                found[pattern[1:-1]] = value
            elif pattern != segment:
                return None
        return found


def path_parameter(segment: str, max_chars: int = MAX_PATH_PARAMETER_CHARS) -> str | None:
    """Decoded once, after the split, so that an encoded slash can never make a path."""
    try:
        value = unquote_to_bytes(segment).decode() if "%" in segment else segment
    except UnicodeDecodeError:
        return None
    unfit = value in ("", ".", "..") or "/" in value or "\\" in value or not value.isprintable()
    return None if unfit or len(value) > max_chars else value


class RouteTable:
    def __init__(self, rows: Sequence[Route]) -> None:
        self._literal: dict[str, dict[str, CompiledRoute]] = {}
        self._patterns: dict[int, dict[tuple[str, ...], dict[str, CompiledRoute]]] = {}
        self._rests: dict[tuple[str, ...], dict[str, CompiledRoute]] = {}
        for row in rows:
            compiled = CompiledRoute(row)
            by_method = self._methods_at(compiled)
            for method in [row.method, *(["HEAD"] if row.method == "GET" and not row.stream else [])]:
                if method in by_method:
                    raise ValueError(f"two rows for {method} {row.path}")
                by_method[method] = compiled

    def _methods_at(self, compiled: CompiledRoute) -> dict[str, CompiledRoute]:
        if "{" not in compiled.row.path:
            return self._literal.setdefault(compiled.row.path, {})
        shape = tuple("{}" if part.startswith("{") else part for part in compiled.segments)
        if compiled.row.rest:
            return self._rests.setdefault(shape, {})
        return self._patterns.setdefault(len(shape), {}).setdefault(shape, {})

    def find(self, method: str, path: str) -> tuple[CompiledRoute, dict[str, str]]:
        by_method = self._literal.get(path)
        if by_method is not None:
            return pick(by_method, method), {}
        segments = path.split("/")[1:]
        for by_method in (*self._patterns.get(len(segments), {}).values(), *self._rests.values()):
            parameters = next(iter(by_method.values())).parameters(segments)
            if parameters is not None:
                chosen = pick(by_method, method)
                return chosen, chosen.parameters(segments) or parameters
        raise NotFound("There is nothing at this path.")


def pick(by_method: Mapping[str, CompiledRoute], method: str) -> CompiledRoute:
    try:
        return by_method[method]
    except KeyError:
        raise MethodNotAllowed(tuple(sorted(by_method))) from None


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
        limits = settings.limits
        self._worker_rate = Buckets(limits.worker, monotonic)
        self._user_rate = Buckets(limits.user, monotonic)
        self._public_rate = Buckets(limits.public, monotonic)
        self._failed_proofs = Buckets(limits.failed_proof, monotonic)
        self._noted_failures = Buckets(limits.noted_failure, monotonic)
        self._noted_overall = Buckets(limits.noted_failures_overall, monotonic)
        self._streams: set[Stream] = set()
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

    async def _answer_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = self._monotonic()
        path, status = "", 500
        try:
            headers = read_headers(scope["headers"])
            peer = (scope.get("client") or ("",))[0]
            ip = client_address(peer, headers.get("x-forwarded-for"), self._proxies)
            self._check_host(headers)
            compiled, parameters = self._table.find(scope["method"], raw_path(scope))
            path = compiled.row.path
            call = await self._admit(compiled, parameters, scope, receive, headers, peer, ip)
            answer = await compiled.row.handler(call)
            status = await self._send_answer(answer, compiled.row, scope, receive, send, began)
        except CallerGone:
            status = 499
        except (
            Exception
        ) as error:  # the outermost frame of a request: it becomes a problem and, if ours, a log entry
            problem = problems.problem_of(error)
            status = problem.status
            await self._send_problem(problem, scope, send)
        finally:
            if self._observe and status:
                self._observe(scope["method"], path, status, self._monotonic() - began)

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """A server on the network is reached by names it cannot know. There, who shows a credential in a header is
        let on to have it checked: a rebound page has no credential to show."""
        host = headers.get("host")
        if self._hosts.holds(host):
            return
        shows_credential = any(name in headers for name in CREDENTIAL_HEADERS)
        if not (self._settings.beyond_loopback and shows_credential and not comes_from_browser(headers)):
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
            await self._note_worker_failure(ip, row.path, "network not allowed")
            raise NetworkNotAllowed(f"Workers may not connect from {ip}.")
        if is_foreign(scope["method"], headers, self._hosts):
            raise ForeignOrigin
        principal = await self._prove(row, headers, peer, ip)
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
            secure=scope.get("scheme") == "https" or self._proxy_says_https(peer, headers),
        )

    def _proxy_says_https(self, peer: str, headers: Mapping[str, str]) -> bool:
        return (
            headers.get("x-forwarded-proto") == "https" and bool(self._proxies) and self._proxies.holds(peer)
        )

    async def _prove(self, row: Route, headers: dict[str, str], peer: str, ip: str) -> Principal:
        if row.permission is Access.PUBLIC:
            return ANONYMOUS
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
                await self._note_worker_failure(ip, row.path, error.detail)
            # After the look-up on purpose: behind one address a bad machine must not lock out the good ones.
            self._failed_proofs.spend(address_key(ip))
            raise

    async def _note_worker_failure(self, ip: str, path: str, why: str) -> None:
        """Rarely enough that a flood cannot fill the audit log."""
        if self._on_worker_auth_failure is None or self._noted_failures.take(address_key(ip)):
            return
        if not self._noted_overall.take(""):
            await self._on_worker_auth_failure(ip, path, why)

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
        self, answer: Answer, row: Route, scope: Scope, receive: Receive, send: Send, began: float
    ) -> int:
        if isinstance(answer, Reply):
            status = answer.status or row.status
            body = answer.body if isinstance(answer.body, bytes) else self._encode(answer.body)
            headers = self._headers_for(scope, answer.content_type, answer.headers)
        elif answer is None:
            status, body, headers = 204, b"", self._headers_for(scope, "", {})
        elif isinstance(answer, msgspec.Struct | dict):
            status, body = row.status, self._encoder.encode(answer)
            headers = self._headers_for(scope, JSON, {})
        else:
            return await self._run_stream(answer, row, scope, receive, send, began)
        await send_whole(send, scope, status, headers, body)
        return status

    def _encode(self, body: Any) -> bytes:
        return b"" if body is None else self._encoder.encode(body)

    async def _run_stream(
        self, stream: Stream, row: Route, scope: Scope, receive: Receive, send: Send, began: float
    ) -> int:
        """Returns 0: it has been observed at its beginning, and how long it lived is no latency."""
        self._streams.add(stream)
        if self._ending:
            stream.end("server shutting down")
        if self._observe:
            self._observe(scope["method"], row.path, 200, self._monotonic() - began)
        try:
            await stream.respond(scope, receive, send, list(self._page_headers))
        finally:
            self._streams.discard(stream)
        return 0

    def _headers_for(self, scope: Scope, content_type: str, own: Mapping[str, str]) -> RawHeaders:
        headers = list(self._api_headers if scope["path"].startswith("/api/") else self._page_headers)
        if own:
            named = {name.lower().encode("latin-1"): value.encode("latin-1") for name, value in own.items()}
            headers = [*(pair for pair in headers if pair[0] not in named), *named.items()]
        if content_type:
            headers.append((b"content-type", content_type.encode("latin-1")))
        return headers

    async def _send_problem(self, problem: problems.ProblemAnswer, scope: Scope, send: Send) -> None:
        headers = [*self._api_headers, *problem.headers, (b"content-type", problems.CONTENT_TYPE.encode())]
        # An answer that had already begun cannot become another one: the connection ends instead.
        with suppress(RuntimeError):
            await send_whole(send, scope, problem.status, headers, problem.body)


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
    )


def security_headers(tls: bool) -> RawHeaders:
    headers = [
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-security-policy", STRICT_CSP),
    ]
    if tls:
        headers.append((b"strict-transport-security", b"max-age=31536000"))
    return headers


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


def read_headers(raw: RawHeaders) -> dict[str, str]:
    """A doubled header is joined by a comma, so that a doubled Host or token fits nothing."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def raw_path(scope: Scope) -> str:
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.decode("latin-1")


async def send_whole(send: Send, scope: Scope, status: int, headers: RawHeaders, body: bytes) -> None:
    if status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(body)))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def answer_lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
