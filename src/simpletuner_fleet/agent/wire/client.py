"""The agent's half of the conversation: one method per call, one error per kind of trouble."""

import asyncio
import base64
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import msgspec

from simpletuner_fleet.agent.ship.output_log import Chunk
from simpletuner_fleet.agent.wire.call_connections import (
    CallAnswer,
    CallConnections,
    CallFailed,
    CallTimeouts,
)
from simpletuner_fleet.agent.wire.errors import Refused, no_answer, problem_of, read_answer
from simpletuner_fleet.agent.wire.outage import Outage
from simpletuner_fleet.agent.wire.part_connections import NoAnswer, Part, PartConnections, PartTimeouts
from simpletuner_fleet.protocol.messages import (
    LOG_AGES_HEADER,
    Accept,
    Accepted,
    Goodbye,
    Heartbeat,
    HeartbeatAnswer,
    LogAnswer,
    LogChunk,
    Register,
    Registered,
    ReportAnswer,
    StatusReport,
    TrainerOptions,
)
from simpletuner_fleet.protocol.metrics import MetricPoint, MetricsAnswer, MetricsSent
from simpletuner_fleet.protocol.sse import Decoder, EventTooLarge, ServerEvent
from simpletuner_fleet.protocol.uploads import (
    TRIED_PART_BYTES,
    TRIED_PART_PATH,
    Manifest,
    ManifestAnswer,
    ManifestSent,
    Note,
    NotesAnswer,
    NotesSent,
    ObjectAsked,
    ObjectMissing,
    ObjectsAnswer,
    ObjectsAsked,
    PartAnswer,
)

T = TypeVar("T")
MAX_PROBLEM_BYTES = 1024 * 1024
CONNECT_TIMEOUT_S = 5.0
TRY_TIMEOUT_S = 15.0
OLD_LOG_BYTES = 64 * 1024
SEALING_BYTES_PER_S = 20e6
"""The last part of a file is answered when the whole was read again: at least this fast."""
NO_ANSWER = (httpx2.RequestError, httpx2.InvalidURL)
"""Nothing came, or nothing that is HTTP."""
JSON = {"Content-Type": "application/json"}
_encoder = msgspec.json.Encoder()
Bytes = AbstractAsyncContextManager[AsyncIterator[bytes]]
"""An answer's body, as it comes."""


class _HasJobs(msgspec.Struct):
    has_jobs: bool


class OrchestratorClient:
    def __init__(self, url: str, token: Callable[[], str], context: ssl.SSLContext | None) -> None:
        self._url = url.rstrip("/")
        self._context = context
        self._token = token
        self.answer_timeout_s = 15.0
        self._http = httpx2.AsyncClient(
            verify=context if context is not None else False,
            timeout=httpx2.Timeout(self.answer_timeout_s, connect=CONNECT_TIMEOUT_S),
            limits=httpx2.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=60),
            trust_env=False,
        )
        self._control = CallConnections(self._url, context)
        """For what a worker and its jobs live by: nothing of `_bulk` ever stands in its way."""
        self._bulk = CallConnections(self._url, context)
        self._part_connections = PartConnections(self.url, context)
        self.outage = Outage()

    @property
    def url(self) -> str:
        return self._url

    @url.setter
    def url(self, url: str) -> None:
        """Calls go there from now on."""
        self._close_connections()
        self._url = url.rstrip("/")
        self._control = CallConnections(self._url, self._context)
        self._bulk = CallConnections(self._url, self._context)

    def keep_connections_for(self, idle_s: float) -> None:
        self._control.keep_idle_s = self._bulk.keep_idle_s = idle_s

    async def close(self) -> None:
        self._part_connections.close()
        self._close_connections()
        await self._http.aclose()

    def _close_connections(self) -> None:
        self._control.close()
        self._bulk.close()

    async def register(self, message: Register) -> Registered:
        path = "/api/workers/register"
        response = await self._request(self._control, "POST", path, _encoder.encode(message), JSON)
        answer = read_answer(response.status, response.content, Registered)
        self.outage.learn(response.ends, answer)
        return answer

    async def heartbeat(self, message: Heartbeat) -> HeartbeatAnswer:
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
            answer = await self._send(self._bulk, "PUT", path + query, chunk.data, LogAnswer, headers)
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
        """Counted apart from the trainer's own."""
        message = MetricsSent(epoch=epoch, first=first, points=list(points))
        return (await self._post(f"/api/workers/job/{job_id}/gpu-metrics", message, MetricsAnswer)).next

    async def send_notes(self, job_id: str, epoch: int, notes: Sequence[Note]) -> None:
        message = NotesSent(epoch=epoch, notes=list(notes))
        await self._post(f"/api/workers/job/{job_id}/notes", message, NotesAnswer)

    async def send_trainer_options(self, message: TrainerOptions) -> None:
        await self._post("/api/workers/trainer-options", message, dict[str, Any])

    async def missing_objects(
        self, job_id: str, epoch: int, objects: Sequence[ObjectAsked]
    ) -> list[ObjectMissing]:
        message = ObjectsAsked(epoch=epoch, objects=list(objects))
        return (await self._post(f"/api/workers/job/{job_id}/objects", message, ObjectsAnswer)).missing

    async def put_part(self, job_id: str, epoch: int, whole_object: ObjectAsked, part: Part) -> PartAnswer:
        """`part_connections.FileShrunk` where the file has become shorter, OSError where it cannot be read."""
        path = f"/api/workers/job/{job_id}/objects/{whole_object.sha256}"
        query = f"?epoch={epoch}&offset={part.offset}&size={whole_object.size}"
        headers = {"X-Worker-Token": self._token(), "Content-Type": "application/octet-stream"}
        timeouts = PartTimeouts(
            connect_s=min(CONNECT_TIMEOUT_S, self.answer_timeout_s),
            step_s=self.answer_timeout_s,
            answer_s=self.answer_timeout_s + whole_object.size / SEALING_BYTES_PER_S,
        )
        try:
            status, content = await self._part_connections.put(path + query, headers, part, timeouts)
        except NoAnswer as error:
            raise no_answer(error) from error
        return read_answer(status, content, PartAnswer)

    async def try_part(self) -> int:
        """Sends a body as large as a real part by the very same way; returns how much of it arrived."""
        headers = {"X-Worker-Token": self._token(), "Content-Type": "application/octet-stream"}
        timeouts = PartTimeouts(connect_s=CONNECT_TIMEOUT_S, step_s=TRY_TIMEOUT_S, answer_s=TRY_TIMEOUT_S)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "part"
            with file.open("wb") as empty:
                empty.truncate(TRIED_PART_BYTES)
            part = Part(file=file, offset=0, count=TRIED_PART_BYTES)
            try:
                status, content = await self._part_connections.put(TRIED_PART_PATH, headers, part, timeouts)
            except NoAnswer as error:
                raise no_answer(error) from error
        return read_answer(status, content, PartAnswer).next_offset

    async def send_manifest(self, job_id: str, epoch: int, manifest: Manifest) -> ManifestAnswer:
        message = ManifestSent(epoch=epoch, manifest=manifest)
        return await self._post(f"/api/workers/job/{job_id}/manifests", message, ManifestAnswer)

    def fetch_object(self, job_id: str, sha256: str, offset: int) -> Bytes:
        """Fetches bytes of a checkpoint, from `offset` on, as they come."""
        return self._fetch(f"/api/workers/job/{job_id}/objects/{sha256}?offset={offset}")

    def fetch_data(self, job_id: str, sha256: str, offset: int) -> Bytes:
        """Fetches bytes of a dataset that the job names."""
        return self._fetch(f"/api/workers/job/{job_id}/data/{sha256}?offset={offset}")

    @asynccontextmanager
    async def _fetch(self, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
        url = self.url + path
        headers = {"X-Worker-Token": self._token(), "Accept-Encoding": "identity"}
        try:
            async with self._http.stream("GET", url, headers=headers, timeout=self._timeout()) as response:
                if response.status_code != 200:
                    raise problem_of(response.status_code, await _beginning_of(response))
                yield response.aiter_raw()
        except NO_ANSWER as error:
            raise no_answer(error) from error

    async def ask(self) -> None:
        """A call that changes nothing: is there an orchestrator, and does it take the token?"""
        headers = {"X-Worker-Token": self._token(), "Accept-Encoding": "identity"}
        try:
            async with self._http.stream("GET", self.url + "/api/workers/queue", headers=headers) as response:
                status, content = response.status_code, await _beginning_of(response)
        except NO_ANSWER as error:
            raise no_answer(error) from error
        read_answer(status, content, _HasJobs)

    async def goodbye(self, message: Goodbye) -> None:
        await self._control_call("/api/workers/disconnect", message, dict[str, Any])

    @asynccontextmanager
    async def stream(
        self, path: str, last_event_id: str, silence_s: Callable[[], float]
    ) -> AsyncIterator[AsyncIterator[ServerEvent]]:
        """Events as they come. A line that stays silent longer than the pings allow is given up as dead."""
        headers = {"X-Worker-Token": self._token(), "Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        timeout = httpx2.Timeout(None, connect=CONNECT_TIMEOUT_S, write=self.answer_timeout_s)
        try:
            async with self._http.stream(
                "GET", self.url + path, headers=headers, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    raise problem_of(response.status_code, await _beginning_of(response))
                yield _events(response, silence_s)
        except (*NO_ANSWER, EventTooLarge, TimeoutError) as error:
            raise no_answer(error) from error

    async def _control_call(self, path: str, message: Any, answer: type[T]) -> T:
        return await self._send(self._control, "POST", path, _encoder.encode(message), answer, JSON)

    async def _post(self, path: str, message: Any, answer: type[T]) -> T:
        return await self._send(self._bulk, "POST", path, _encoder.encode(message), answer, JSON)

    async def _send(
        self,
        connections: CallConnections,
        method: str,
        path: str,
        content: bytes,
        answer: type[T],
        headers: Mapping[str, str],
    ) -> T:
        response = await self._request(connections, method, path, content, headers)
        return read_answer(response.status, response.content, answer)

    async def _request(
        self,
        connections: CallConnections,
        method: str,
        path: str,
        content: bytes,
        headers: Mapping[str, str],
    ) -> CallAnswer:
        headers = {"X-Worker-Token": self._token(), **headers}
        timeouts = CallTimeouts(
            connect_s=min(CONNECT_TIMEOUT_S, self.answer_timeout_s), silence_s=self.answer_timeout_s
        )
        try:
            return await connections.request(method, path, headers, content, timeouts)
        except CallFailed as error:
            raise no_answer(error.__cause__ or error) from error

    def _timeout(self) -> httpx2.Timeout:
        return httpx2.Timeout(self.answer_timeout_s, connect=min(CONNECT_TIMEOUT_S, self.answer_timeout_s))


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
