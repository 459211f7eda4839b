"""Runs the application: each request is matched, admitted, read, decoded, handled and answered, in that order."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import FleetError, NotLeader
from simpletuner_fleet.engine.gate import Gate
from simpletuner_fleet.http.access.auth import ANONYMOUS, Authenticator, Principal, WorkerAuthFailure
from simpletuner_fleet.http.access.credential_cache import CredentialSource
from simpletuner_fleet.http.access.hosts import comes_from_browser
from simpletuner_fleet.http.edge import compression, problems, scim_problems
from simpletuner_fleet.http.edge.admission import Admission, EdgeSettings, KnownCaller
from simpletuner_fleet.http.edge.bodies import (
    FORM,
    FORM_IN_PARTS,
    JSON,
    RAW,
    Incoming,
    check_content_type,
    read_body,
)
from simpletuner_fleet.http.edge.exchange import CallerGone, Exchange, head_of, into_task
from simpletuner_fleet.http.edge.heads import Heads
from simpletuner_fleet.http.edge.ignored import ignored_header, naming_ignored
from simpletuner_fleet.http.edge.problem_words import asks_for_a_person, in_words_of
from simpletuner_fleet.http.edge.route_table import CompiledRoute, RouteTable
from simpletuner_fleet.http.edge.routes import Answer, Call, Reply, Route
from simpletuner_fleet.http.edge.streams import EVENT_HEADERS, Chunks, EventStream, Stream
from simpletuner_fleet.protocol.problems import CONTENT_TYPE

__all__ = ("Edge", "EdgeSettings", "ProblemPage", "build_app")

Observe = Callable[[str, str, int, float], None]
"""Called with (method, path of the row, status, seconds) after every answer; streams count when they begin."""
ProblemPage = Callable[[problems.ProblemAnswer, Mapping[str, str], str, Principal], Reply | None]
"""Given (problem, headers of the request, path and query, who asked as far as it is known): what a person who asked for
a page sees; None: the problem itself."""
HUNG_UP = 499
NO_LONGER_VALID = "this credential is no longer valid"

log = logging.getLogger(__name__)


class Edge:
    def __init__(
        self,
        routes: Sequence[Route],
        deps: Any,
        *,
        credentials: CredentialSource,
        settings: EdgeSettings,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        on_worker_auth_failure: WorkerAuthFailure | None,
        observe: Observe | None,
        problem_page: ProblemPage | None,
    ) -> None:
        self._table = RouteTable(routes)
        self._deps = deps
        self._body_timeout_s = settings.body_timeout_s
        self._admission = Admission(settings, credentials, now, monotonic, on_worker_auth_failure)
        self._monotonic = monotonic
        self._observe = observe
        self._problem_page = problem_page
        self._authenticator = Authenticator(credentials, now)
        self._streams: dict[Stream, Principal] = {}
        """Maps each to whoever opened it."""
        self._in_doubt = False
        """Whether those who opened streams are to be looked up, and nobody has begun to."""
        self._revoked_meanwhile: dict[Exchange, set[str]] = {}
        """Maps each request that may open a stream to the credentials that were revoked since it came."""
        self._ending = False
        self._gate = Gate()
        self._encode = msgspec.json.Encoder().encode
        self._may_promise = settings.may_promise
        self._heads = Heads(settings.tls, settings.term)
        self._event_head = head_of(200, [*self._heads.of_pages, *EVENT_HEADERS])

    async def __call__(self, exchange: Exchange) -> None:
        began = self._monotonic()
        row: Route | None = None
        status, principal = 500, ANONYMOUS
        try:
            admission = self._admission
            memory = exchange.memory
            caller = (memory.caller if memory else None) or admission.caller_of(exchange)
            compiled, parameters = self._table.find(exchange.method, exchange.path)
            row = compiled.row
            if row.stream:
                self._revoked_meanwhile[exchange] = set()
            known = admission.admit_known(compiled, exchange.headers, caller)
            principal = known or await admission.admit(compiled, exchange, caller)
            admission.permit(principal, compiled, exchange, caller.ip)
            query, ignored = compiled.asked(exchange.query) if exchange.query or row.query else (None, ())
            body: Any = None
            if row.body:
                content = exchange.whole_body()
                if content is None or row.pieces or len(content) > row.max_body_bytes:
                    principal, body = await self._read(compiled, principal, exchange, caller)
                else:
                    body = self._decode(compiled, principal, exchange.headers, content)
            if not row.prompt and not exchange.in_task:
                await into_task()
            call = Call(
                row,
                self._deps,
                principal,
                body,
                query,
                parameters,
                caller.ip,
                exchange.headers,
                caller.secure,
                lambda: exchange.ends,
                ignored,
            )
            in_turn = compiled.in_turn
            answer = await (self._in_turn(call, compiled, exchange, caller) if in_turn else row.handler(call))
            if self._may_promise is not None and not self._may_promise():
                drop(answer)
                raise NotLeader
            if isinstance(answer, (EventStream, Chunks)):
                status = 0
                await self._begin_stream(answer, call, exchange, began)
            else:
                status = self._send(answer, compiled, call, exchange)
        except CallerGone:
            status = HUNG_UP
        except Exception as error:  # the outermost frame: it becomes a problem and, if ours, a log entry
            problem = problems.problem_of(error)
            status = problem.status
            self._send_problem(problem, exchange, principal)
        finally:
            self._revoked_meanwhile.pop(exchange, None)
            if self._observe and status:
                self._observe(exchange.method, row.path if row else "", status, self._monotonic() - began)

    async def _in_turn(
        self, call: Call[Any], compiled: CompiledRoute, exchange: Exchange, known: KnownCaller
    ) -> Answer:
        caller = call.principal.id
        waits = not self._gate.enter_at_once(caller)
        if waits:
            await self._gate.enter(caller)
        try:
            if waits:
                call.principal = await self._admission.admit_again(compiled, exchange, known)
            return await call.route.handler(call)
        finally:
            self._gate.leave(caller)

    async def end_streams(self) -> None:
        """Ends every open stream cleanly, and lets none begin any more. It is the server's `before_shutdown`."""
        self._ending = True
        for stream in list(self._streams):
            stream.end("server shutting down")

    def end_streams_of(self, token_hashes: Collection[str]) -> None:
        """Ends the streams of these credentials: whoever was logged out or lost a token sees nothing more.

        A stream that is just being opened ends as soon as it is open.
        """
        for revoked in self._revoked_meanwhile.values():
            revoked.update(token_hashes)
        for stream, opener in list(self._streams.items()):
            if opener.token_hash in token_hashes:
                stream.end(NO_LONGER_VALID)

    async def end_streams_in_doubt(self) -> None:
        """Ends the streams of credentials that are gone, or hold less than when they were opened.

        Something may have been taken away of which nobody was told. Each credential is looked up once, however often
        there is doubt meanwhile.
        """
        was_in_doubt, self._in_doubt = self._in_doubt, True
        if was_in_doubt:
            return
        await asyncio.sleep(0)
        self._in_doubt = False
        for opener in {one.token_hash: one for one in self._streams.values()}.values():
            try:
                still_holds = await self._authenticator.still_holds(opener)
            except FleetError:
                still_holds = False  # whoever comes again is asked again
            if not still_holds:
                self.end_streams_of([opener.token_hash])

    async def _read(
        self, compiled: CompiledRoute, principal: Principal, exchange: Exchange, caller: KnownCaller
    ) -> tuple[Principal, Any]:
        """Returns the body once it is here, and who the caller is then."""
        row, headers = compiled.row, exchange.headers
        length = headers.get("content-length")
        if row.pieces:
            check_content_type(headers.get("content-type"), RAW, False)
            return principal, Incoming(exchange.receive, length, row.max_body_bytes, self._body_timeout_s)
        if not exchange.in_task:
            await into_task()
        body = await read_body(exchange.receive, length, row.max_body_bytes, self._body_timeout_s)
        principal = await self._admission.admit_again(compiled, exchange, caller)
        return principal, self._decode(compiled, principal, headers, body)

    def _decode(
        self, compiled: CompiledRoute, principal: Principal, headers: Mapping[str, str], body: bytes
    ) -> Any:
        row = compiled.row
        if not body and not row.body_required:
            return None
        media_type = FORM if row.form else RAW if row.body is bytes else JSON
        given = headers.get("content-type")
        if row.scim and given:
            given = given.replace(scim_problems.CONTENT_TYPE, JSON, 1)
        if given != media_type and not (row.in_parts and (given or "").startswith(FORM_IN_PARTS)):
            form_is_json = principal.kind in ("token", "loopback") and not comes_from_browser(headers)
            check_content_type(given, media_type, form_is_json)
        return compiled.decoded(body)

    def _send(
        self,
        answer: Struct | dict[str, Any] | None,
        compiled: CompiledRoute,
        call: Call[Any],
        exchange: Exchange,
    ) -> int:
        """Sends an answer that is no stream; returns its status."""
        status = call.route.status
        if call.ignored:
            answer = naming_ignored(answer, call.ignored)
        if isinstance(answer, Reply):
            return self._send_reply(answer, status, exchange)
        if answer is None:
            exchange.respond(self._heads.plain(204, exchange.path, ""), b"")
            return 204
        body = self._encode(answer)
        if (
            status == 200
            and len(body) >= compression.WORTH_IT_BYTES
            and compression.is_worth_it(exchange, body, JSON)
        ):
            head = self._heads.with_more(status, exchange.path, JSON, {}, compression.HEADERS)
            exchange.respond(head, compression.gzipped(body))
            return status
        plain = compiled.answer_head
        if plain is None:
            plain = compiled.answer_head = self._heads.plain(status, exchange.path, JSON)
        exchange.respond(plain, body)
        return status

    async def _begin_stream(self, stream: Stream, call: Call[Any], exchange: Exchange, began: float) -> None:
        """Observes the stream when it begins, since its duration is no latency, and runs it."""
        if self._observe:
            self._observe(exchange.method, call.route.path, 200, self._monotonic() - began)
        await self._run_stream(stream, call, exchange)

    def _send_reply(
        self, reply: Reply, status: int, exchange: Exchange, more: Sequence[tuple[bytes, bytes]] = ()
    ) -> int:
        status = reply.status or status
        headers = [(b"set-cookie", cookie.encode("latin-1")) for cookie in reply.cookies]
        body = self._bytes_of(reply.body)
        if status == 200 and compression.is_worth_it(exchange, body, reply.content_type):
            body = compression.gzipped(body)
            headers += compression.HEADERS
        head = self._heads.with_more(
            status, exchange.path, reply.content_type, reply.headers, [*headers, *more]
        )
        exchange.respond(head, body)
        return status

    def _bytes_of(self, body: Any) -> bytes:
        if isinstance(body, bytes):
            return body
        return b"" if body is None else self._encode(body)

    async def _run_stream(self, stream: Stream, call: Call[Any], exchange: Exchange) -> None:
        self._streams[stream] = call.principal
        if self._ending:
            stream.end("server shutting down")
        elif call.principal.token_hash in self._revoked_meanwhile.get(exchange, ()):
            stream.end(NO_LONGER_VALID)
        if isinstance(stream, EventStream):
            self._hand_over(stream, exchange)
            return
        try:
            await stream.respond(exchange, [*self._heads.of_pages, *ignored_header(call.ignored)])
        finally:
            del self._streams[stream]

    def _hand_over(self, stream: EventStream, exchange: Exchange) -> None:
        """Hands the connection to the stream, which goes on alone; the processing of the request ends here."""
        stream.on_detached = self._forget_stream
        try:
            exchange.hand_over(self._event_head, stream)
        except BaseException as error:
            stream.lost()
            if not isinstance(error, CallerGone):
                raise

    def _forget_stream(self, stream: EventStream) -> None:
        self._streams.pop(stream, None)

    def _send_problem(
        self, problem: problems.ProblemAnswer, exchange: Exchange, principal: Principal
    ) -> None:
        if exchange.begun:  # It cannot become another answer: the connection ends instead.
            exchange.cut(at_once=False)
            return
        if exchange.path.startswith(scim_problems.PATHS):
            problem = scim_problems.in_scims_words(problem)
            scim = (b"content-type", scim_problems.CONTENT_TYPE.encode())
            exchange.respond(
                head_of(problem.status, [*self._heads.of_api, *problem.headers, scim]), problem.body
            )
            return
        page = self._page_for(problem, exchange, principal)
        if page:
            self._send_reply(page, problem.status, exchange, problem.headers)
            return
        if asks_for_a_person(exchange.headers):
            problem = in_words_of(problem, exchange.headers, principal)
        kind = (b"content-type", CONTENT_TYPE.encode())
        exchange.respond(head_of(problem.status, [*self._heads.of_api, *problem.headers, kind]), problem.body)

    def _page_for(
        self, problem: problems.ProblemAnswer, exchange: Exchange, principal: Principal
    ) -> Reply | None:
        wants_page = exchange.method in ("GET", "HEAD") and "text/html" in exchange.headers.get("accept", "")
        if self._problem_page is None or not wants_page or exchange.path.startswith("/api/"):
            return None
        try:
            address = exchange.path + (f"?{exchange.query.decode('latin-1')}" if exchange.query else "")
            return self._problem_page(problem, exchange.headers, address, principal)
        except Exception:  # still the outermost frame: the page is lost, the problem behind it must not be
            log.exception("the page for a problem with status %d could not be made", problem.status)
            return None


def drop(answer: Answer) -> None:
    """Closes an answer that is not sent after all: a stream may hold a place that others wait for."""
    if isinstance(answer, Stream):
        answer.lost()


def build_app(
    routes: Sequence[Route],
    deps: Any,
    *,
    credentials: CredentialSource,
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
