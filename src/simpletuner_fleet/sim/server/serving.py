"""Serves the streams of one orchestrator process: it decides what is sent on them, and when they are closed."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.engine.orders import addressed
from simpletuner_fleet.engine.streams import StreamHub, WorkerStream
from simpletuner_fleet.orchestrator.workers import attendance
from simpletuner_fleet.protocol.messages import (
    CheckpointNow,
    Drain,
    JobCancel,
    JobSubmit,
    Shutdown,
    StopAttempt,
    ValidateNow,
)
from simpletuner_fleet.sim.network import DEAD_PEER_S, Link
from simpletuner_fleet.sim.server.store import SimCrash
from simpletuner_fleet.sim.server.streams import Listener, Stream
from simpletuner_fleet.sim.world import drive

if TYPE_CHECKING:
    from simpletuner_fleet.sim.server.process import Process

BASE_URL = "http://orchestrator"


class Serving:
    def __init__(self, process: "Process") -> None:
        self.process = process
        self.world = process.world
        self.policy = process.policy
        self.hub = StreamHub()
        self.streams: dict[WorkerStream, Stream] = {}
        self.opened: list[Stream] = []
        """Since somebody last asked whether they are served on a token that is valid."""
        self.woken: dict[Stream, None] = {}

    def begin(self) -> StreamHub:
        self.hub = StreamHub()
        return self.hub

    def end(self) -> None:
        streams, self.streams = self.streams, {}
        self.woken.clear()
        self.opened.clear()
        for stream in streams.values():
            stream.reset_agent_end()

    def open(self, token: str, worker_id: str, link: Link, listener: Listener, incarnation: str) -> Stream:
        stream = Stream(link, listener, worker_id, tokens.hashed(token))
        stream.served = self.hub.open(
            worker_id,
            incarnation,
            lambda: self.woken.setdefault(stream),
            lambda offers: self._send_offers(stream, offers),
        )
        self.streams[stream.served] = stream
        self.opened.append(stream)
        drive(
            attendance.stream_opened(
                self.process.alive(), worker_id, "10.0.0.1", incarnation, token_hash=stream.token_hash
            )
        )
        self.woken.setdefault(stream)
        return stream

    def of_workers(self, worker_ids: set[str]) -> list[Stream]:
        """Returns the streams of these workers, and those that were opened since the last call."""
        opened, self.opened = self.opened, []
        touched = [stream for stream in self.streams.values() if stream.worker_id in worker_ids]
        return touched + [stream for stream in opened if stream.served in self.streams]

    def serve_woken(self) -> None:
        while self.woken and self.process.fleet is not None:
            look, self.woken = self.woken, {}
            for stream in sorted(look, key=lambda item: item.worker_id):
                try:
                    self._send_orders(stream)
                except SimCrash:
                    self.process.crash()
                    return
                except StoreUnavailable:
                    continue

    def _send_orders(self, stream: Stream) -> None:
        served = stream.served
        if served is None or served not in self.streams:
            return
        if served.closing:
            self.close(stream)
            return
        _, orders = drive(attendance.orders(self.process.alive(), stream.worker_id, BASE_URL))
        self._send_offers(stream, orders.jobs)
        for stop in orders.stop:
            if stop not in stream.stopped:
                stream.stopped.add(stop)
                stream.push(_cancel_of(stop))
        self._send_requests(stream, orders.save)
        self._send_requests(stream, orders.validate)
        if orders.drain and not stream.drain_sent:
            stream.push(Drain())
        if orders.shutdown and not stream.shutdown_sent:
            stream.push(Shutdown(reason="drained"))
        stream.drain_sent, stream.shutdown_sent = orders.drain, orders.shutdown

    def _send_requests(self, stream: Stream, requests: Sequence[CheckpointNow | ValidateNow]) -> None:
        for request in requests:
            what = (request.job_id, request.epoch, request.type, request.asked_at)
            if what not in stream.requested:
                stream.requested.add(what)
                stream.push(request)

    def _send_offers(self, stream: Stream, offers: Sequence[JobSubmit]) -> None:
        now = self.world.now
        for offer in offers:
            turn = Turn(offer.job_id, offer.epoch)
            if now - stream.offered_at.get(turn, -1e9) >= self.policy.offer_resend_s:
                stream.offered_at[turn] = now
                stream.push(addressed(offer, BASE_URL))
        if offers and not stream.resend_planned:
            stream.resend_planned = True
            self.world.after(self.policy.offer_resend_s, lambda: self._resend(stream))

    def _resend(self, stream: Stream) -> None:
        stream.resend_planned = False
        if self.process.may_work and stream.served in self.streams:
            self.woken.setdefault(stream)
            self.serve_woken()

    def close(self, stream: Stream) -> None:
        if stream.served is None or self.streams.pop(stream.served, None) is None:
            return
        stream.reset_agent_end()
        if self.hub.closed(stream.served):
            drive(attendance.stream_closed(self.process.alive(), stream.worker_id, self.hub.streaming))
            self.look_who_is_gone([stream.worker_id])

    def look_who_is_gone(self, worker_ids: list[str]) -> None:
        life, since = self.process.life, self.process.alive().clock.now()
        self.world.after(
            self.policy.reconnect_grace_s, lambda: self._note_who_is_gone(life, worker_ids, since)
        )

    def _note_who_is_gone(self, life: int, worker_ids: list[str], since: float) -> None:
        process = self.process
        if life != process.life or not process.may_work:
            return
        gone = [one for one in worker_ids if not self.hub.streaming(one)]
        try:
            drive(attendance.stream_still_gone(process.alive(), gone, since))
        except StoreUnavailable:
            self.world.note("who is gone could not be noted")
        except SimCrash:
            process.crash()
            return
        self.serve_woken()
        process.after_step()

    def ping_all(self, heard: Callable[[str], None]) -> None:
        for stream in list(self.streams.values()):
            try:
                self._ping(stream, heard)
            except StoreUnavailable:
                self.world.counts["a stream could not be noted"] += 1

    def _ping(self, stream: Stream, heard: Callable[[str], None]) -> None:
        stream.ping()
        if self.world.now - stream.acked_at >= DEAD_PEER_S:
            self.close(stream)
            return
        worker = self.process.store.view.worker(stream.worker_id)
        if worker is not None and worker.legacy:
            drive(attendance.stream_alive(self.process.alive(), worker.id))
            heard(worker.id)


def _cancel_of(stop: StopAttempt) -> JobCancel:
    return JobCancel(
        job_id=stop.job_id,
        epoch=stop.epoch,
        attempt=stop.attempt,
        reason=stop.reason,
        grace_s=stop.grace_s,
        save_s=stop.save_s,
    )
