"""Streams to a worker what it should be doing: at once, again on every connection, and again until it is followed."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.configs.bundle import MAX_BUNDLE_BYTES
from simpletuner_fleet.core.errors import FleetError, NotFound
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.orders import addressed
from simpletuner_fleet.http.api.deps import Deps, deps_of, own_worker
from simpletuner_fleet.http.api.ownership import refuse_other_worker
from simpletuner_fleet.http.edge.routes import WORKER, Call, Route, rfc3339
from simpletuner_fleet.http.edge.streams import EventStream
from simpletuner_fleet.orchestrator.workers import attendance
from simpletuner_fleet.protocol import sse
from simpletuner_fleet.protocol.messages import (
    CheckpointNow,
    Drain,
    JobCancel,
    JobSubmit,
    Orders,
    Ping,
    Shutdown,
    StopAttempt,
    StreamMessage,
    TokenRotated,
    ValidateNow,
)

log = logging.getLogger(__name__)

CANCEL_AGAIN_S = 10.0
CHECK_AGAIN_S = 1.0
CLOSE_TRIES = 5
MAX_BUFFER_BYTES = 4 * MAX_BUNDLE_BYTES
LAST_WORDS: dict[str, StreamMessage] = {
    "superseded": Shutdown(reason="superseded"),
    "deleted": Shutdown(reason="deleted"),
    "cleaned_up": Shutdown(reason="deleted"),
    "token_rotated": TokenRotated(),
}


class OrderFeed:
    """Sends one worker what it should be doing, over its open stream.

    It holds no task of its own: it checks when it is woken, and sets a timer while an order is not followed.
    """

    __slots__ = (
        "_again",
        "_base_url",
        "_cancels",
        "_checking",
        "_deps",
        "_drain_sent",
        "_event_id",
        "_legacy",
        "_listener",
        "_offers",
        "_saves_sent",
        "_shutdown_sent",
        "_stops_sent",
        "_timer",
        "_validations_sent",
        "events",
    )

    def __init__(self, deps: Deps, worker: Worker, incarnation: str, base_url: str) -> None:
        self._deps = deps
        self._base_url = base_url
        self._legacy = worker.legacy
        self._event_id = 0
        self._checking = self._again = False
        self._timer: asyncio.TimerHandle | None = None
        self._offers: dict[Turn, float] = {}
        self._cancels: dict[Turn, float] = {}
        self._stops_sent: dict[Turn, StopAttempt] = {}
        """A stop that is hurried is another one, and sent at once."""
        self._saves_sent: dict[Turn, float] = {}
        """Each request for a checkpoint is sent once by each connection; heartbeats say it again."""
        self._validations_sent: dict[Turn, float] = {}
        """The same of each request for a validation."""
        self._drain_sent = self._shutdown_sent = False
        self.events = EventStream(
            on_close=self._closed,
            ping=self._ping,
            ping_every_s=deps.fleet.policy.ping_interval_s,
            max_buffer_bytes=MAX_BUFFER_BYTES,
        )
        self._listener = deps.hub.open(worker.id, incarnation, self.check, self.take)

    def check(self) -> None:
        """Checks whether there is something to send. However often it is woken during one check, one more follows."""
        if self.events.why is not None:
            return
        if self._listener.closing:
            self._end(self._listener.closing)
        elif self._checking:
            self._again = True
        else:
            self._checking = True
            self._deps.background_tasks.start(self._send_what_is_due())

    def take(self, offers: Sequence[JobSubmit]) -> None:
        """Sends what was just decided and stored; whether it was followed is checked when it would be sent again."""
        if self.events.why is not None:
            return
        now = asyncio.get_running_loop().time()
        for offer in offers:
            self._offers[Turn(offer.job_id, offer.epoch)] = now
            self._push(addressed(offer, self._base_url))
        if self._timer is None:
            self._check_in(self._deps.fleet.policy.offer_resend_s)

    def abandon(self) -> None:
        self.events.end("abandoned")

    async def _send_what_is_due(self) -> None:
        try:
            while self.events.why is None:
                self._again = False
                self._send(*await self._read_orders())
                if not self._again:
                    break
        except NotFound:
            self._end("deleted")
        except FleetError as error:
            log.warning("cannot read the orders of worker %s: %s", self._listener.worker_id, error.detail)
            self._check_in(CHECK_AGAIN_S)
        finally:
            self._checking = False

    async def _read_orders(self) -> tuple[Worker, Orders]:
        """Returns what the worker should be doing; a stream asks for it nowhere else."""
        return await attendance.orders(self._deps.fleet, self._listener.worker_id, self._base_url)

    def _send(self, worker: Worker, orders: Orders) -> None:
        self._legacy = worker.legacy
        now = asyncio.get_running_loop().time()
        policy = self._deps.fleet.policy
        for job in orders.jobs:
            if _due(self._offers, Turn(job.job_id, job.epoch), now, policy.offer_resend_s):
                self._push(job)
        for stop in orders.stop:
            if self._stops_sent.get(Turn(stop.job_id, stop.epoch)) != stop:
                self._stops_sent[Turn(stop.job_id, stop.epoch)] = stop
                self._cancels.pop(Turn(stop.job_id, stop.epoch), None)
            if _due(self._cancels, Turn(stop.job_id, stop.epoch), now, CANCEL_AGAIN_S):
                self._push(_cancel(stop))
        self._send_once(self._saves_sent, orders.save)
        self._send_once(self._validations_sent, orders.validate)
        _forget(self._offers, orders.jobs)
        _forget(self._cancels, orders.stop)
        _forget(self._stops_sent, orders.stop)
        if orders.drain and not self._drain_sent:
            self._push(Drain(note=worker.drain_note))
        self._drain_sent = orders.drain
        if orders.shutdown and not self._shutdown_sent:
            self._push(Shutdown(reason="drained"))
        self._shutdown_sent = orders.shutdown
        waits = [at + policy.offer_resend_s for at in self._offers.values()]
        waits += [at + CANCEL_AGAIN_S for at in self._cancels.values()]
        if waits:
            self._check_in(max(0.0, min(waits) - now))

    def _send_once(self, sent: dict[Turn, float], requests: Sequence[CheckpointNow | ValidateNow]) -> None:
        for request in requests:
            if sent.get(Turn(request.job_id, request.epoch)) != request.asked_at:
                sent[Turn(request.job_id, request.epoch)] = request.asked_at
                self._push(request)
        _forget(sent, requests)

    def _push(self, message: StreamMessage) -> None:
        self.events.push(self._encoded(message))

    def _encoded(self, message: StreamMessage) -> bytes:
        self._event_id += 1
        return sse.encode(message, self._event_id)

    def _check_in(self, delay_s: float) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        self.check()

    def _ping(self) -> bytes:
        fleet = self._deps.fleet
        if self._legacy:
            self._deps.background_tasks.start(attendance.stream_alive(fleet, self._listener.worker_id))
        return self._encoded(Ping(at=rfc3339(fleet.clock.now()) or ""))

    def _end(self, why: str) -> None:
        last = LAST_WORDS.get(why)
        self.events.end(why, self._encoded(last) if last else b"")

    def _closed(self, why: str) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._deps.hub.closed(self._listener) and not self._deps.stopping:
            self._deps.background_tasks.start(self._tell_closed())

    async def _tell_closed(self) -> None:
        """Tries several times to tell the fleet: work offered to an unreachable worker is delayed."""
        worker_id = self._listener.worker_id
        for _ in range(CLOSE_TRIES):
            try:
                if await attendance.stream_closed(self._deps.fleet, worker_id, self._deps.hub.streaming):
                    await self._tell_still_gone(worker_id)
                return
            except NotFound:
                return
            except FleetError as error:
                log.warning("cannot note that worker %s left its stream: %s", worker_id, error.detail)
                await asyncio.sleep(CHECK_AGAIN_S)

    async def _tell_still_gone(self, worker_id: str) -> None:
        fleet = self._deps.fleet
        since = fleet.clock.now()
        await asyncio.sleep(fleet.policy.reconnect_grace_s)
        if not self._deps.stopping and not self._deps.hub.streaming(worker_id):
            await attendance.stream_still_gone(fleet, [worker_id], since)


def _due(sent: dict[Turn, float], turn: Turn, now: float, again_s: float) -> bool:
    if turn in sent and now < sent[turn] + again_s:
        return False
    sent[turn] = now
    return True


def _forget(
    sent: dict[Turn, Any], orders: Sequence[JobSubmit | StopAttempt | CheckpointNow | ValidateNow]
) -> None:
    live_turns = {(one.job_id, one.epoch) for one in orders}
    for turn in [turn for turn in sent if turn not in live_turns]:
        del sent[turn]


def _cancel(stop: StopAttempt) -> JobCancel:
    return JobCancel(
        job_id=stop.job_id,
        epoch=stop.epoch,
        attempt=stop.attempt,
        reason=stop.reason,
        grace_s=stop.grace_s,
        save_s=stop.save_s,
    )


class StreamQuery(Struct, kw_only=True):
    worker_id: str | None = None
    incarnation: str = ""


async def stream(call: Call[None]) -> EventStream:
    query: StreamQuery = call.query
    refuse_other_worker(call, query.worker_id)
    worker = await own_worker(call)
    attendance.must_be_newest(worker, query.incarnation)
    deps = deps_of(call)
    feed = OrderFeed(deps, worker, query.incarnation or worker.incarnation, deps.base_url(call))
    try:
        token_hash = call.principal.token_hash
        await attendance.stream_opened(
            deps.fleet, worker.id, call.ip, query.incarnation, token_hash=token_hash
        )
    except BaseException:
        feed.abandon()
        raise
    feed.check()
    return feed.events


ROUTES = [
    Route(
        "GET",
        "/api/workers/stream",
        stream,
        WORKER,
        query=StreamQuery,
        summary="Server-Sent Events: job_submit, job_cancel, checkpoint_now, validate_now, drain, shutdown, token_rotated, "
        "ping",
        tags=("workers",),
        stream=True,
    )
]
