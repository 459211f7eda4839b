"""Sends a test message while its owner waits, and notes it like any other."""

import time

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.events import Event, EventType
from simpletuner_fleet.core.notices.endpoint import Channel, DeliveryTry
from simpletuner_fleet.delivery.formats import TEST_EVENT
from simpletuner_fleet.delivery.outcome import DeliveryFailed
from simpletuner_fleet.delivery.sender import Message, MessageSender
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.notices.endpoints import HISTORY, EndpointCaller, endpoint_of
from simpletuner_fleet.orchestrator.notices.reading import destination_of


async def try_out(fleet: Fleet, sender: MessageSender, endpoint_id: str, who: EndpointCaller) -> DeliveryTry:
    """Sends the test. It changes nothing else: neither how far the endpoint was told, nor whether it is paused."""
    endpoint = await endpoint_of(fleet, endpoint_id, who)
    now, vault = fleet.clock.now(), fleet.vault
    to = await fleet.read(lambda view: destination_of(view, vault, endpoint, now))
    message = Message(
        id=fleet.ids.new("msg"), entries=_entry(now, who) if endpoint.channel is Channel.SYSLOG else ()
    )
    began, ok = time.monotonic(), True
    try:
        if isinstance(to, str):
            raise DeliveryFailed(to)
        async with sender.turn(to.channel):
            fleet.insist_on_leading()
            detail = await sender.send(to, message)
    except DeliveryFailed as error:
        ok, detail = False, error.detail
    delivery = DeliveryTry(
        endpoint_id=endpoint_id,
        number=0,
        message_id=message.id,
        at=fleet.clock.now(),
        event=TEST_EVENT,
        first_seq=0,
        last_seq=0,
        ok=ok,
        detail=detail,
        took_s=round(time.monotonic() - began, 3),
    )

    def step(transaction: Transaction) -> None:
        if transaction.tx.endpoint(endpoint_id) is None:
            return
        transaction.tx.add_delivery(delivery, HISTORY)
        transaction.record(
            Event(
                type=EventType.NOTIFICATION_TESTED,
                actor=who.writer.actor,
                target_type="notification",
                target_id=endpoint_id,
                details={"name": endpoint.name, "ok": ok},
            )
        )

    await fleet.act(step)
    return delivery


def _entry(now: float, who: EndpointCaller) -> tuple[AuditEntry, ...]:
    actor = who.writer.actor
    return (AuditEntry(0, now, EventType.NOTIFICATION_TESTED, actor.id, actor.name, actor.ip, "", "", {}),)
