"""One worker that speaks the protocol as the real agent does and starts no trainer."""

import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from bench.load import worker_messages
from bench.load.wire import Connection, EventReader, get, post
from bench.load.worker_messages import WorkerAccount
from simpletuner_fleet.protocol.messages import AuditHead

P = TypeVar("P", Connection, EventReader)


class OfferedJob(msgspec.Struct):
    """As much of `job_submit` as is needed to answer it."""

    type: str
    job_id: str = ""
    attempt: int = 0
    epoch: int = 0


class RegisterAnswer(msgspec.Struct):
    stream_url: str
    audit_head: AuditHead | None = None


class HeartbeatHead(msgspec.Struct):
    audit_head: AuditHead | None = None


class Surroundings(Protocol):
    """What a worker needs of the process it lives in."""

    host: str
    tls: bool
    offered_at: dict[str, float]

    async def dial(self, protocol: Callable[[], P]) -> P: ...
    def job_offered(self, worker: "ProtocolWorker", offer: OfferedJob) -> None: ...
    async def may_complete(self) -> None:
        """Returns when one more job may be reported as completed."""
        ...

    def job_completed(self) -> None: ...


_offer = msgspec.json.Decoder(OfferedJob)
_register_answer = msgspec.json.Decoder(RegisterAnswer)
_heartbeat_head = msgspec.json.Decoder(HeartbeatHead)


class ProtocolWorker:
    def __init__(self, surroundings: Surroundings, account: WorkerAccount) -> None:
        self._surroundings = surroundings
        self._account = account
        self._headers = worker_messages.headers_of_calls(surroundings.host, account.token)
        self._calls: Connection | None = None
        self._known_offers: set[tuple[str, int]] = set()
        self._seq = 0
        self._audit_head: AuditHead | None = None
        self.stream: EventReader | None = None

    async def connect(self) -> None:
        tls = "verified" if self._surroundings.tls else "none"
        body = worker_messages.registration(self._account, self._next_seq(), tls)
        answer = _register_answer.decode(await self.call("/api/workers/register", body))
        self._audit_head = answer.audit_head
        path = f"{answer.stream_url}&incarnation={self._account.incarnation}"
        headers = worker_messages.headers_of_stream(self._surroundings.host, self._account.token)
        self.stream = await self._surroundings.dial(lambda: EventReader(get(path, headers), self._take_event))
        await self.stream.opened

    async def send_heartbeat(self) -> None:
        """Sends it again where the server has closed the connection just then, as an agent's next heartbeat would."""
        body = worker_messages.heartbeat(self._account, self._audit_head)
        try:
            content = await self.call("/api/workers/heartbeat", body)
        except ConnectionError:
            self.hang_up()
            content = await self.call("/api/workers/heartbeat", body)
        self._audit_head = _heartbeat_head.decode(content).audit_head or self._audit_head

    async def send_heartbeats_until(self, end: float) -> int:
        """Returns how many were answered; the message is the same each time, as an idle worker's is."""
        await self.send_heartbeat()
        body = worker_messages.heartbeat(self._account, self._audit_head)
        request = post("/api/workers/heartbeat", self._headers, body)
        count = 1
        while time.monotonic() < end:
            connection = await self._connection()
            await connection.send(request)
            count += 1
        return count

    async def call(self, path: str, body: bytes) -> bytes:
        connection = await self._connection()
        return await connection.send(post(path, self._headers, body))

    async def _connection(self) -> Connection:
        """Keeps one connection, as the agent does, and opens a new one where the server has closed it."""
        if self._calls is None or not self._calls.open:
            self._calls = await self._surroundings.dial(Connection)
        return self._calls

    def hang_up(self) -> None:
        if self._calls is not None:
            self._calls.close()
            self._calls = None

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _take_event(self, data: bytes) -> None:
        offer = _offer.decode(data)
        turn = (offer.job_id, offer.epoch)
        if offer.type != "job_submit" or turn in self._known_offers:
            return
        self._known_offers.add(turn)
        self._surroundings.offered_at.setdefault(offer.job_id, time.monotonic())
        self._surroundings.job_offered(self, offer)

    async def run_job(self, offer: OfferedJob) -> None:
        """Accepts the offer, reports that the trainer runs, and that it has completed."""
        path = f"/api/workers/job/{offer.job_id}"
        attempt, epoch = offer.attempt, offer.epoch
        accept = worker_messages.acceptance(self._account, attempt, epoch, self._next_seq())
        await self.call(f"{path}/accept", accept)
        await self.call(f"{path}/status", worker_messages.running_report(self._account, attempt, epoch))
        await self._surroundings.may_complete()
        await self.call(f"{path}/status", worker_messages.completed_report(self._account, attempt, epoch))
        self._surroundings.job_completed()
