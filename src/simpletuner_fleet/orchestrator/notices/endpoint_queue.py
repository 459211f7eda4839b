"""Keeps one endpoint's state while this orchestrator leads: what is to be sent there, and the task that sends it."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, tzinfo

from msgspec import Struct

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.notices.endpoint import Endpoint
from simpletuner_fleet.core.notices.kinds import Notice, message_id, streams_audit, wants
from simpletuner_fleet.core.notices.timing import Wait, may_try, next_message
from simpletuner_fleet.delivery.formats import AUDIT_EVENT
from simpletuner_fleet.delivery.sender import Message
from simpletuner_fleet.orchestrator.notices.endpoints import zone_named
from simpletuner_fleet.orchestrator.notices.reading import NoticesRead

MOST_HELD = 1_000
"""No more of the log is read for an endpoint that has so much to be told."""
ENTRIES_IN_ONE = 100


class OutgoingMessage(Struct, frozen=True, kw_only=True):
    """Holds the message that is sent to an endpoint next, and says which entries of the audit log it covers."""

    message: Message
    event: str
    first: int
    last: int
    upto: int
    """What must be noted before it is sent; 0: a message about one entry needs no such note."""


class EndpointQueue:
    def __init__(self, endpoint: Endpoint, now: float) -> None:
        self.endpoint = endpoint
        self.scanned = endpoint.state.cursor
        self.noted_at = now
        """When the store last learnt how far the log was read for it."""
        self.task: asyncio.Task[None] | None = None
        self._held: list[Notice] = []
        self._entries: list[AuditEntry] = []
        self._is_log = streams_audit(endpoint)
        self._zone = _zone(endpoint.rules.zone)

    @property
    def has_room(self) -> bool:
        """Tells whether more of the log is read for it: all of a begun message is, however much that is."""
        is_begun = self.scanned < self.endpoint.state.upto
        return is_begun or len(self._held) + len(self._entries) < MOST_HELD

    @property
    def is_empty(self) -> bool:
        return not self._held and not self._entries

    @property
    def is_sending(self) -> bool:
        return self.task is not None and not self.task.done()

    def take(self, chunk: NoticesRead) -> None:
        if self._is_log:
            self._entries += [entry for entry in chunk.entries if entry.seq > self.scanned]
        else:
            self._held += [
                one for one in chunk.notices if one.seq > self.scanned and wants(self.endpoint, one)
            ]
        self.scanned = max(self.scanned, chunk.last)

    def next(self, now: float) -> OutgoingMessage | Wait | None:
        """Returns what to send next, or until when to wait.

        Returns None where there is nothing to send, or where not all of a begun message has been read again.
        """
        if self.is_empty:
            return None
        pause = may_try(self.endpoint.state, now)
        if pause > now:
            return Wait(pause)
        upto = self.endpoint.state.upto
        if upto > self.scanned:
            return None
        if self._is_log:
            return self._outgoing_log(upto)
        begun = [one for one in self._held if one.seq <= upto]
        if begun:
            return self._outgoing(begun, begun[-1].seq)
        decision = next_message(self.endpoint.rules, self._held, now, self._zone)
        if isinstance(decision, Wait):
            return decision
        notices = self._held[: decision.count]
        return self._outgoing(notices, notices[-1].seq if decision.held_back else 0)

    def delivered_upto(self, seq: int) -> None:
        self._held = [one for one in self._held if one.seq > seq]
        self._entries = [one for one in self._entries if one.seq > seq]

    def _outgoing(self, notices: Sequence[Notice], upto: int) -> OutgoingMessage:
        first, last = notices[0], notices[-1]
        return OutgoingMessage(
            message=Message(
                id=message_id(self.endpoint.id, first.seq, first.hash, upto), notices=tuple(notices)
            ),
            event=first.kind if len(notices) == 1 else "digest",
            first=first.seq,
            last=last.seq,
            upto=upto,
        )

    def _outgoing_log(self, upto: int) -> OutgoingMessage:
        begun = [one for one in self._entries if one.seq <= upto]
        entries = begun or self._entries[:ENTRIES_IN_ONE]
        first, last = entries[0], entries[-1]
        return OutgoingMessage(
            message=Message(
                id=message_id(self.endpoint.id, first.seq, first.hash, last.seq), entries=tuple(entries)
            ),
            event=AUDIT_EVENT,
            first=first.seq,
            last=last.seq,
            upto=last.seq,
        )


def _zone(name: str) -> tzinfo:
    try:
        return zone_named(name)
    except Invalid:  # the machine has other time zones than the one on which it was set up
        return UTC
