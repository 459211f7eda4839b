"""Sends what has happened from the audit log to each endpoint independently, while this orchestrator leads.

What is sent comes from the log alone, and how far an endpoint was told is a row of the store: the next leader goes on
there. A message that was sent and not noted is sent again, with the same id.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.notices.endpoint import DeliveryTry, Endpoint
from simpletuner_fleet.core.notices.kinds import Notice
from simpletuner_fleet.core.notices.timing import after_failure, after_success
from simpletuner_fleet.delivery.outcome import DeliveryFailed
from simpletuner_fleet.delivery.sender import Destination, MessageSender
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.notices.endpoint_queue import EndpointQueue, OutgoingMessage
from simpletuner_fleet.orchestrator.notices.endpoints import HISTORY
from simpletuner_fleet.orchestrator.notices.ledger import Ledger
from simpletuner_fleet.orchestrator.notices.reading import (
    approval_paths,
    approvals_kept,
    destination_of,
    read_chunk,
)
from simpletuner_fleet.orchestrator.notices.waits import WaitWatch
from simpletuner_fleet.ports import View

log = logging.getLogger(__name__)

LOOK_S = 0.5
AFTER_TROUBLE_S = 5.0
NOTED_EVERY_S, NOTED_EVERY = 600.0, 5_000
"""How far the log was read for an endpoint that nothing of it concerns is noted after so long, or so many entries."""
NOTED_AT_ONCE = 100
COMPARED_EVERY_S = 60.0
"""So often the endpoints of the store are read: one may have been changed by somebody who never learnt that."""
NOTHING_LEFT = "not sent: it was decided meanwhile, or is not for its owner to decide any more"


class Deliverer:
    def __init__(self, fleet: Fleet, sender: MessageSender) -> None:
        self.sender = sender
        self._fleet = fleet
        self._ledger = Ledger(fleet)
        self._waits = WaitWatch(fleet)
        self._queues: dict[str, EndpointQueue] = {}
        self._unread: set[str] = set()
        """Endpoints that were changed, and are to be read before anything is sent there."""
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        tasks = [queue.task for queue in self._queues.values() if queue.task]
        for task in (self._task, *tasks):
            if task:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await self._ledger.stop()
        self.sender.close()

    async def changed(self, endpoint_id: str) -> None:
        """Starts an endpoint anew after a person has changed or deleted it: what was under way there ends."""
        self._end(endpoint_id)
        try:
            await self._load(endpoint_id)
        except BaseException:
            self._unread.add(endpoint_id)
            raise
        finally:
            self._woken.set()

    async def _load(self, endpoint_id: str) -> None:
        endpoint = await self._fleet.read(lambda view: view.endpoint(endpoint_id))
        self._end(endpoint_id)  # another change may have begun it anew while this one read
        self._unread.discard(endpoint_id)
        self._watch(endpoint)

    async def look_once(self) -> float:
        """Reads on in the log and begins what is due; returns how long to sleep if nothing happens meanwhile."""
        for endpoint_id in tuple(self._unread):
            await self._load(endpoint_id)
        more = await self._read_on()
        now = self._fleet.clock.now()
        due = [now if more else now + LOOK_S]
        for queue in self._queues.values():
            if queue.is_sending:
                continue
            outgoing = queue.next(now)
            if isinstance(outgoing, OutgoingMessage):
                queue.task = asyncio.create_task(self._tell(queue))
            elif outgoing is not None:
                due.append(outgoing.until)
        await self._note_how_far(now)
        if any("job.waits_long" in queue.endpoint.rules.events for queue in self._queues.values()):
            await self._waits.look(now)
        return max(0.0, min(due) - now)

    async def _run(self) -> None:
        compared_at: float | None = None
        while True:
            try:
                if compared_at is None:
                    for endpoint in await self._fleet.read(lambda view: view.endpoints()):
                        self._watch(endpoint)
                    compared_at = time.monotonic()
                elif time.monotonic() - compared_at >= COMPARED_EVERY_S:
                    await self._compare()
                    compared_at = time.monotonic()
                pause_s = COMPARED_EVERY_S
                if self._queues or self._unread:
                    pause_s = min(pause_s, await self.look_once())
            except Exception:
                log.exception("what has happened could not be told; it is tried again")
                pause_s = AFTER_TROUBLE_S
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
            self._woken.clear()

    async def _compare(self) -> None:
        """Finds the endpoints that the store has otherwise: they are read before anything is sent there."""
        known = {endpoint_id: queue.endpoint.turn for endpoint_id, queue in self._queues.items()}
        for stored in await self._fleet.read(lambda view: view.endpoints()):
            turn = known.pop(stored.id, None)
            if stored.paused is None if turn is None else turn < stored.turn:
                self._unread.add(stored.id)
        self._unread |= known.keys()  # the deleted ones

    def _end(self, endpoint_id: str) -> None:
        queue = self._queues.pop(endpoint_id, None)
        if queue and queue.task:
            queue.task.cancel()

    def _watch(self, endpoint: Endpoint | None) -> None:
        if endpoint is not None and endpoint.paused is None:
            self._queues[endpoint.id] = EndpointQueue(endpoint, self._fleet.clock.now())

    async def _read_on(self) -> bool:
        """Reads the log once for all endpoints at the same position, and tells whether there is more to read."""
        head = self._fleet.audit_head.seq if self._fleet.audit_head else 0
        places: dict[int, list[EndpointQueue]] = defaultdict(list)
        for queue in self._queues.values():
            if queue.has_room and queue.scanned < head:
                places[queue.scanned].append(queue)
        for after, queues in places.items():
            owners = {
                queue.endpoint.owner for queue in queues if "approval.needed" in queue.endpoint.rules.events
            }
            organisation = self._fleet.organisation
            chunk = await self._fleet.read(
                partial(read_chunk, organisation=organisation, after=after, owners=owners)
            )
            for queue in queues:
                queue.take(chunk)
        return bool(places) and any(
            queue.has_room and queue.scanned < head for queue in self._queues.values()
        )

    async def _tell(self, queue: EndpointQueue) -> None:
        """Sends one message after the other until there is none, or one fails."""
        try:
            while isinstance(outgoing := queue.next(self._fleet.clock.now()), OutgoingMessage):
                if not await self._send(queue, outgoing):
                    return
        except NotLeader:
            await asyncio.sleep(AFTER_TROUBLE_S)  # whoever leads goes on
        except Exception:
            log.exception(
                "endpoint %s: what became of a message could not be noted; it is sent again",
                queue.endpoint.id,
            )
            await asyncio.sleep(AFTER_TROUBLE_S)

    async def _send(self, queue: EndpointQueue, outgoing: OutgoingMessage) -> bool:
        """Sends a message; tells whether it arrived and that was noted."""
        state = queue.endpoint.state
        if outgoing.upto not in (0, state.upto):
            begun = replace(queue.endpoint, state=replace(state, upto=outgoing.upto))
            if not await self._note(queue, begun):
                return False
        async with self.sender.turn(queue.endpoint.channel):
            began = time.monotonic()
            detail, failure = await self._try(queue.endpoint, outgoing)
            took_s = round(time.monotonic() - began, 3)
        now = self._fleet.clock.now()
        if failure:
            after = after_failure(
                queue.endpoint, detail, now, hopeless=failure.hopeless, wait_s=failure.wait_s
            )
        else:
            after = after_success(queue.endpoint, outgoing.last, now)
        delivery = DeliveryTry(
            endpoint_id=queue.endpoint.id,
            number=0,
            message_id=outgoing.message.id,
            at=now,
            event=outgoing.event,
            first_seq=outgoing.first,
            last_seq=outgoing.last,
            ok=failure is None,
            detail=detail,
            took_s=took_s,
        )
        if not await self._note(queue, after, delivery) or failure:
            return False
        queue.delivered_upto(outgoing.last)
        return True

    async def _try(self, endpoint: Endpoint, outgoing: OutgoingMessage) -> tuple[str, DeliveryFailed | None]:
        now, fleet, notices = self._fleet.clock.now(), self._fleet, outgoing.message.notices
        vault, organisation, life_s = fleet.vault, fleet.organisation, fleet.policy.approval_link_s

        def look(view: View) -> tuple[Destination | str, tuple[Notice, ...], dict[str, str]]:
            kept = approvals_kept(view, organisation, endpoint, notices)
            paths = approval_paths(view, vault, endpoint, kept, life_s, now)
            return destination_of(view, vault, endpoint, now), kept, paths

        to, kept, paths = await fleet.read_now(look)
        if isinstance(to, str):
            return to, DeliveryFailed(to, hopeless=True)
        if notices and not kept:
            return NOTHING_LEFT, None
        self._fleet.insist_on_leading()
        try:
            return await self.sender.send(to, replace(outgoing.message, notices=kept, links=paths)), None
        except DeliveryFailed as error:
            return error.detail, error
        except Exception as error:
            log.exception("endpoint %s: a message could not be sent", endpoint.id)
            failure = DeliveryFailed(f"It broke off: {type(error).__name__}.")
            return failure.detail, failure

    async def _note(self, queue: EndpointQueue, after: Endpoint, delivery: DeliveryTry | None = None) -> bool:
        """Writes the endpoint's new state, unless a person has changed it meanwhile: then nothing of this counts.

        Whoever changed it may not have learnt that they did, and has not said so: it is read again.
        """

        def step(transaction: Transaction) -> bool:
            stored = transaction.tx.endpoint(after.id)
            if stored is None or stored.turn != after.turn:
                return False
            transaction.tx.put_endpoint(after)
            if delivery:
                transaction.tx.add_delivery(delivery, HISTORY)
            if after.paused:
                transaction.record(_paused(after))
            return True

        if not await self._ledger.write(step):
            if self._queues.get(after.id) is queue:
                del self._queues[after.id]
                self._unread.add(after.id)
                self._woken.set()
            return False
        queue.endpoint = after
        queue.noted_at = self._fleet.clock.now()
        if after.paused and self._queues.get(after.id) is queue:
            del self._queues[after.id]
        return True

    async def _note_how_far(self, now: float) -> None:
        late = [
            queue
            for queue in self._queues.values()
            if queue.is_empty
            and not queue.is_sending
            and queue.scanned > queue.endpoint.state.cursor
            and (
                now - queue.noted_at >= NOTED_EVERY_S
                or queue.scanned - queue.endpoint.state.cursor >= NOTED_EVERY
            )
        ]

        def note(queue: EndpointQueue) -> Coroutine[Any, Any, bool]:
            state = replace(queue.endpoint.state, cursor=queue.scanned, upto=0)
            return self._note(queue, replace(queue.endpoint, state=state))

        # Together, since all are written at once then: one after the other they would hold up all messages.
        await asyncio.gather(*map(note, late[:NOTED_AT_ONCE]))


def _paused(endpoint: Endpoint) -> Event:
    why = endpoint.paused.why if endpoint.paused else ""
    return Event(
        type=EventType.NOTIFICATION_PAUSED,
        actor=ORCHESTRATOR,
        target_type="notification",
        target_id=endpoint.id,
        details={"name": endpoint.name, "channel": str(endpoint.channel), "why": why},
    )
