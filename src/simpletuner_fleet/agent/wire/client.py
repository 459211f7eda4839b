"""Calls the orchestrator for the agent: one method per call, and one error per kind of trouble."""

import asyncio
import base64
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import httpx2
import msgspec

from simpletuner_fleet.agent.ship.logs.output_log import Chunk
from simpletuner_fleet.agent.wire.addresses import (
    ANSWER_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    Address,
    AddressConnections,
    Addresses,
    MakeContext,
    may_be_elsewhere,
    worst_of,
)
from simpletuner_fleet.agent.wire.call_connections import (
    MAX_PROBLEM_BYTES,
    CallAnswer,
    CallFailed,
    CallTimeouts,
)
from simpletuner_fleet.agent.wire.direct_connections import DirectConnections, DirectFailed
from simpletuner_fleet.agent.wire.errors import Refused, Unreachable, no_answer, problem_of, read_answer
from simpletuner_fleet.agent.wire.hearings import Hearings
from simpletuner_fleet.agent.wire.outage import Outage
from simpletuner_fleet.agent.wire.part_connections import NoAnswer, Part, PartTimeouts
from simpletuner_fleet.client.trust import TrustError
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.protocol.messages import (
    LOG_AGES_HEADER,
    TERM_HEADER,
    Accept,
    Accepted,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    JoinMachine,
    LogAnswer,
    LogChunk,
    MachineJoined,
    Register,
    Registered,
    ReportAnswer,
    StatusReport,
    TrainerOptions,
)
from simpletuner_fleet.protocol.metrics import MetricPoint, MetricsAnswer, MetricsSent
from simpletuner_fleet.protocol.sse import Decoder, EventTooLarge, ServerEvent
from simpletuner_fleet.protocol.uploads import (
    TRIED_LINK_PATH,
    TRIED_PART_BYTES,
    TRIED_PART_PATH,
    DirectAnswer,
    DirectAsked,
    DirectEnd,
    DirectPart,
    Manifest,
    ManifestAnswer,
    ManifestSent,
    Note,
    NotesAnswer,
    NotesSent,
    ObjectAsked,
    ObjectsAnswer,
    ObjectsAsked,
    PartAnswer,
    StorageLink,
    StorageTrial,
)

T = TypeVar("T")
TRY_TIMEOUT_S = 15.0
OLD_LOG_BYTES = 64 * 1024
SEALING_BYTES_PER_S = 20e6
"""The last part of a file is answered when the whole was read again: at least this fast."""
SILENCES = {"control": 2, "bulk": 20}
"""A whole call takes no longer than so many silences; after the first kind the next heartbeat must still be in time."""
SLOWEST_BYTES_PER_S = 1000.0
NO_ANSWER = (httpx2.RequestError, httpx2.InvalidURL)
"""Nothing came, or nothing that is HTTP."""
JSON = {"Content-Type": "application/json"}
_encoder = msgspec.json.Encoder()
Bytes = AbstractAsyncContextManager[AsyncIterator[bytes]]
"""An answer's body, as it comes."""


class _HasJobs(msgspec.Struct):
    has_jobs: bool
    name: str = ""
    """Older orchestrators do not say it."""


class OrchestratorClient:
    """Calls the first of its addresses where an orchestrator answers, and goes to the next where none does."""

    def __init__(
        self,
        url: str,
        token: Callable[[], str],
        context: ssl.SSLContext | MakeContext | None,
        others: Sequence[Address] = (),
    ) -> None:
        """`context` may be yet to be made, once there is somebody at the first address."""
        self._token = token
        self.answer_timeout_s = ANSWER_TIMEOUT_S
        self._keep_idle_s = 60.0
        self._addresses = Addresses([_address(url, context), *others])
        self.outage = Outage()
        self.hearings = Hearings()
        self.direct = DirectConnections()

    @property
    def url(self) -> str:
        """Returns the address where calls go now."""
        return self._addresses.current.url

    def keep_connections_for(self, idle_s: float) -> None:
        self._keep_idle_s = idle_s
        for connections in self._addresses.open_connections:
            connections.keep_connections_for(idle_s)

    async def close(self) -> None:
        await self.direct.close()
        for connections in self._addresses.open_connections:
            await connections.close()

    async def register(self, message: Register) -> Registered:
        content = _encoder.encode(message)
        with self.hearings.hearing():
            answer, response = await self._exchange(
                "control", "POST", "/api/workers/register", content, Registered, JSON
            )
        # Where several may lead, no refusal proves that nobody does: another one may lead that cannot be reached.
        self.outage.learn("" if response.term else response.ends, answer)
        return answer

    async def join(self, message: JoinMachine) -> MachineJoined:
        """Joins with the one-time token, which is sent where a worker's own will be."""
        return await self._control_call("/api/workers/join", message, MachineJoined)

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
        with self.hearings.hearing():
            return await self._control_call("/api/workers/heartbeat", message, HeartbeatAnswer)

    async def accept(self, job_id: str, message: Accept) -> Accepted:
        return await self._control_call(f"/api/workers/job/{job_id}/accept", message, Accepted)

    async def report(self, job_id: str, message: StatusReport) -> ReportAnswer:
        return await self._control_call(f"/api/workers/job/{job_id}/status", message, ReportAnswer)

    async def send_log(self, job_id: str, epoch: int, chunk: Chunk, rank: int = 0) -> int:
        """Returns how much of the log the orchestrator has then.

        Ages are sent, not times: its clock may differ from ours.
        """
        query = f"?epoch={epoch}&offset={chunk.offset}&gap={chunk.gap}&rank={rank}"
        now = time.time()
        ages = ",".join(f"{offset}:{max(0, round((now - at) * 1000))}" for offset, at in chunk.times)
        headers = {"Content-Type": "application/octet-stream", LOG_AGES_HEADER: ages}
        path = f"/api/workers/job/{job_id}/logs"
        try:
            answer = await self._send("bulk", "PUT", path + query, chunk.data, LogAnswer, headers)
            return answer.next_offset
        except Refused as problem:
            if problem.status != 405 or rank:
                raise
        # An orchestrator older than this agent takes small pieces in JSON only.
        data = base64.b64encode(chunk.data[:OLD_LOG_BYTES]).decode("ascii")
        message = LogChunk(epoch=epoch, offset=chunk.offset, data=data, gap=chunk.gap)
        return (await self._post(path, message, LogAnswer)).next_offset

    async def send_metrics(self, job_id: str, epoch: int, first: int, points: Sequence[MetricPoint]) -> int:
        message = MetricsSent(epoch=epoch, first=first, points=list(points))
        return (await self._post(f"/api/workers/job/{job_id}/metrics", message, MetricsAnswer)).next

    async def send_gpu_metrics(
        self, job_id: str, epoch: int, first: int, points: Sequence[MetricPoint]
    ) -> int:
        """Sends points that are counted apart from the trainer's own."""
        message = MetricsSent(epoch=epoch, first=first, points=list(points))
        return (await self._post(f"/api/workers/job/{job_id}/gpu-metrics", message, MetricsAnswer)).next

    async def send_notes(self, job_id: str, epoch: int, notes: Sequence[Note]) -> None:
        message = NotesSent(epoch=epoch, notes=list(notes))
        await self._post(f"/api/workers/job/{job_id}/notes", message, NotesAnswer)

    async def send_trainer_options(self, message: TrainerOptions) -> None:
        await self._post("/api/workers/trainer-options", message, dict[str, Any])

    async def missing_objects(self, job_id: str, epoch: int, objects: Sequence[ObjectAsked]) -> ObjectsAnswer:
        message = ObjectsAsked(epoch=epoch, objects=list(objects))
        return await self._post(f"/api/workers/job/{job_id}/objects", message, ObjectsAnswer)

    async def ask_direct(
        self, turn: Turn, sha256: str, size: int, *, part_bytes: int = 0, part: DirectPart | None = None
    ) -> DirectAnswer:
        """Begins to send a file straight to the storage, or goes on; with `part` the answer has a link for it."""
        message = DirectAsked(epoch=turn.epoch, size=size, part_bytes=part_bytes, part=part)
        path = f"/api/workers/job/{turn.job_id}/objects/{sha256}/direct"
        return await self._post(path, message, DirectAnswer)

    async def end_direct(self, turn: Turn, sha256: str, size: int) -> DirectAnswer:
        """Returns once the storage has verified the whole file.

        That may take as long as the orchestrator's own look.
        """
        message = DirectEnd(epoch=turn.epoch, size=size)
        path = f"/api/workers/job/{turn.job_id}/objects/{sha256}/direct/end"
        return await self._post(path, message, DirectAnswer, more_s=2 * size / SEALING_BYTES_PER_S)

    async def put_part(self, job_id: str, epoch: int, whole_object: ObjectAsked, part: Part) -> PartAnswer:
        """Raises `part_connections.FileShrunk` where the file has become shorter, OSError where it cannot be read."""
        path = f"/api/workers/job/{job_id}/objects/{whole_object.sha256}"
        query = f"?epoch={epoch}&offset={part.offset}&size={whole_object.size}"
        headers = {"X-Worker-Token": self._token(), "Content-Type": "application/octet-stream"}
        timeouts = PartTimeouts(
            connect_s=min(CONNECT_TIMEOUT_S, self.answer_timeout_s),
            step_s=self.answer_timeout_s,
            answer_s=self.answer_timeout_s + whole_object.size / SEALING_BYTES_PER_S,
        )
        async with self._connections() as connections:
            try:
                status, content = await connections.parts.put(path + query, headers, part, timeouts)
            except NoAnswer as error:
                raise no_answer(error) from error
            return read_answer(status, content, PartAnswer)

    async def try_part(self) -> int:
        """Sends a body as large as a real part over the same connection path; returns how much of it arrived."""
        headers = {"X-Worker-Token": self._token(), "Content-Type": "application/octet-stream"}
        timeouts = PartTimeouts(connect_s=CONNECT_TIMEOUT_S, step_s=TRY_TIMEOUT_S, answer_s=TRY_TIMEOUT_S)
        with _zeros(TRIED_PART_BYTES) as part:
            async with self._connections() as connections:
                try:
                    status, content = await connections.parts.put(TRIED_PART_PATH, headers, part, timeouts)
                except NoAnswer as error:
                    raise no_answer(error) from error
                return read_answer(status, content, PartAnswer).next_offset

    async def try_storage(self) -> bool:
        """Returns whether files may go straight to the storage. Raises DirectFailed where it cannot be used from here."""
        try:
            trial = await self._send("bulk", "GET", TRIED_LINK_PATH, b"", StorageTrial, {})
        except (Refused, Unreachable):
            return False
        if not trial.url:
            return False
        async with self.direct.get(trial.url, 0) as chunks:
            async for _ in chunks:
                break
        if trial.send_url:
            with _zeros(TRIED_PART_BYTES) as part:
                await self.direct.put(trial.send_url, trial.headers, part)
        return True

    async def send_manifest(self, job_id: str, epoch: int, manifest: Manifest) -> ManifestAnswer:
        message = ManifestSent(epoch=epoch, manifest=manifest)
        return await self._post(f"/api/workers/job/{job_id}/manifests", message, ManifestAnswer)

    @asynccontextmanager
    async def fetch_object(
        self, job_id: str, sha256: str, offset: int
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Fetches bytes of a checkpoint, from `offset` on, as they come: from the storage itself where it can be reached."""
        path = f"/api/workers/job/{job_id}/objects/{sha256}"
        url = await self._link(path) if self.direct.is_open else ""
        if url:
            try:
                async with self.direct.get(url, offset) as chunks:
                    yield chunks
                return
            except DirectFailed as error:
                self.direct.leave(str(error))
        async with self._fetch(f"{path}?offset={offset}") as chunks:
            yield chunks

    async def _link(self, path: str) -> str:
        """Returns '' where there is none: fetching then shows what is wrong, with the file or the orchestrator."""
        try:
            return (await self._send("bulk", "GET", f"{path}/link", b"", StorageLink, {})).url
        except (Refused, Unreachable):
            return ""

    def fetch_data(self, job_id: str, sha256: str, offset: int) -> Bytes:
        """Fetches bytes of a dataset that the job names."""
        return self._fetch(f"/api/workers/job/{job_id}/data/{sha256}?offset={offset}")

    @asynccontextmanager
    async def _fetch(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        headers = {"X-Worker-Token": self._token(), "Accept-Encoding": "identity"}
        async with self._connections() as connections:
            url, timeout = connections.url + path, self._timeout()
            opening = connections.http.stream("GET", url, headers=headers, timeout=timeout)
            try:
                async with AsyncExitStack() as opened:
                    # A file takes as long as it has bytes; that it will come is said soon, or not at all.
                    async with asyncio.timeout(CONNECT_TIMEOUT_S + 2 * self.answer_timeout_s):
                        response = await opened.enter_async_context(opening)
                        if response.status_code != 200:
                            raise problem_of(response.status_code, await _beginning_of(response))
                    yield response.aiter_raw()
            except (*NO_ANSWER, TimeoutError) as error:
                raise no_answer(error) from error

    async def ask(self) -> str:
        """Asks, changing nothing, whether there is an orchestrator that takes the token; returns its worker's name."""
        return (await self._send("control", "GET", "/api/workers/queue", b"", _HasJobs, {})).name

    async def clock_skew_s(self) -> float | None:
        """Tells how far this machine's clock is ahead of the orchestrator's; None where its answer has no time."""
        async with self._connections() as connections:
            try:
                answer = await connections.http.get(
                    connections.url + "/health/live", timeout=CONNECT_TIMEOUT_S
                )
            except NO_ANSWER as error:
                raise no_answer(error) from error
        try:
            return time.time() - parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
        except (ValueError, OverflowError):
            return None

    async def goodbye(self, message: Goodbye) -> None:
        await self._control_call("/api/workers/disconnect", message, dict[str, Any])

    @asynccontextmanager
    async def stream(
        self, path: str, last_event_id: str, silence_s: Callable[[], float]
    ) -> AsyncIterator[AsyncIterator[ServerEvent]]:
        """Yields events as they come. A connection that is silent longer than the pings allow is given up as dead."""
        headers = {"X-Worker-Token": self._token(), "Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S, write=self.answer_timeout_s)
        async with self._connections() as connections:
            opening = connections.http.stream("GET", connections.url + path, headers=headers, timeout=timeout)
            try:
                async with AsyncExitStack() as opened:
                    # Events come whenever they like; that they will come is said soon, or not at all.
                    async with asyncio.timeout(CONNECT_TIMEOUT_S + self.answer_timeout_s):
                        response = await opened.enter_async_context(opening)
                        if response.status_code != 200:
                            raise problem_of(response.status_code, await _beginning_of(response))
                    self._addresses.check_term(response.headers.get(TERM_HEADER))
                    yield _events(response, silence_s)
            except (*NO_ANSWER, EventTooLarge, TimeoutError) as error:
                raise no_answer(error) from error

    async def _control_call(self, path: str, message: Any, answer: type[T]) -> T:
        return await self._send("control", "POST", path, _encoder.encode(message), answer, JSON)

    async def _post(self, path: str, message: Any, answer: type[T], more_s: float = 0.0) -> T:
        """`more_s` is how much longer than others its answer may take."""
        content = _encoder.encode(message)
        return (await self._exchange("bulk", "POST", path, content, answer, JSON, more_s))[0]

    async def _send(
        self,
        kind: Literal["control", "bulk"],
        method: str,
        path: str,
        content: bytes,
        answer: type[T],
        headers: Mapping[str, str],
    ) -> T:
        return (await self._exchange(kind, method, path, content, answer, headers))[0]

    async def _exchange(
        self,
        kind: Literal["control", "bulk"],
        method: str,
        path: str,
        content: bytes,
        answer: type[T],
        headers: Mapping[str, str],
        more_s: float = 0.0,
    ) -> tuple[T, CallAnswer]:
        """Tries every address once. No call of a worker does harm when it arrives twice."""
        failures: list[Refused | Unreachable] = []
        for address in self._addresses.in_turn():
            try:
                response = await self._send_to(address, kind, method, path, content, headers, more_s)
                result = read_answer(response.status, response.content, answer)
            except (Refused, Unreachable) as error:
                if not may_be_elsewhere(error):
                    raise
                failures.append(error)
                self._addresses.turn_from(address)
            else:
                self._addresses.keep(address)
                return result, response
        raise worst_of(failures)

    async def _send_to(
        self,
        address: Address,
        kind: Literal["control", "bulk"],
        method: str,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
        more_s: float,
    ) -> CallAnswer:
        connections = await self._open(address)
        calls = connections.control if kind == "control" else connections.bulk
        headers = {"X-Worker-Token": self._token(), **headers}
        silence_s = self.answer_timeout_s + more_s
        timeouts = CallTimeouts(
            connect_s=min(CONNECT_TIMEOUT_S, self.answer_timeout_s),
            silence_s=silence_s,
            whole_s=silence_s * SILENCES[kind] + len(content) / SLOWEST_BYTES_PER_S,
        )
        try:
            response = await calls.request(method, path, headers, content, timeouts)
        except CallFailed as error:
            raise no_answer(error.__cause__ or error) from error
        self._addresses.check_term(response.term)
        return response

    async def _open(self, address: Address) -> AddressConnections:
        try:
            connections = await address.connections()
        except (TrustError, OSError) as error:
            raise no_answer(error) from error
        connections.keep_connections_for(self._keep_idle_s)
        return connections

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[AddressConnections]:
        """Yields the connections for one call; if it fails in a way that another address may not, that one is next."""
        address = self._addresses.current
        try:
            yield await self._open(address)
        except (Refused, Unreachable) as error:
            if may_be_elsewhere(error):
                self._addresses.turn_from(address)
            raise

    def _timeout(self) -> httpx2.Timeout:
        return httpx2.Timeout(self.answer_timeout_s, connect=min(CONNECT_TIMEOUT_S, self.answer_timeout_s))


def _address(url: str, context: ssl.SSLContext | MakeContext | None) -> Address:
    if callable(context):
        return Address(url, context)

    async def known_context() -> ssl.SSLContext | None:
        return context

    return Address(url, known_context, AddressConnections(url, context))


@contextmanager
def _zeros(count: int) -> Iterator[Part]:
    """Yields a part of a file that holds only zeros, and removes the file afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "part"
        with file.open("wb") as empty:
            empty.truncate(count)
        yield Part(file=file, offset=0, count=count)


async def _beginning_of(response: httpx2.Response) -> bytes:
    """Reads no more than a problem may have: whoever answers in the orchestrator's place must not fill our memory."""
    content = bytearray()
    async for chunk in response.aiter_raw():
        content += chunk
        if len(content) >= MAX_PROBLEM_BYTES:
            break
    return bytes(content[:MAX_PROBLEM_BYTES])


async def _events(response: httpx2.Response, silence_s: Callable[[], float]) -> AsyncIterator[ServerEvent]:
    decoder = Decoder()
    chunks = response.aiter_raw()
    while True:
        try:
            async with asyncio.timeout(silence_s()):
                chunk = await anext(chunks)
        except StopAsyncIteration:
            return
        for event in decoder.feed(chunk):
            yield event
