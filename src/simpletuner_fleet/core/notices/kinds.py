"""Decides which entries of the log are worth a message, and who may get it."""

import hashlib
from collections.abc import Collection
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.core.notices.endpoint import Channel, Endpoint

AUDIT = "audit"
"""Every entry of the audit log, as it is."""
KINDS = {
    "job.failed": N_("My job failed"),
    "job.completed": N_("My job finished"),
    "job.waits_long": N_("My job has waited too long"),
    "job.loss_nan": N_("The loss of my job is not a number"),
    "job.approved": N_("My job was approved"),
    "job.rejected": N_("My job was not approved"),
    "approval.needed": N_("A job waits for my approval"),
    "quota.nearly_used": N_("A quota or budget is nearly used"),
    "quota.reached": N_("A quota or budget is reached"),
    "worker.lost": N_("A worker was lost"),
}
"""What people choose from, in the order in which it is shown."""
SEES_ALL = "admin.see_all"
NEEDED = {
    "worker.lost": ("admin.workers",),
    AUDIT: ("admin.audit", SEES_ALL),
}
"""The permissions without which nobody is told of it."""
OF_EVERYBODY = "admin.notifications"
"""The permission to be told of everybody's jobs, with that to see them."""
OF_ONESELF = "notifications.own"
SOURCES: dict[str, str] = {
    EventType.JOB_FAILED: "job.failed",
    EventType.JOB_COMPLETED: "job.completed",
    EventType.JOB_WAITS_LONG: "job.waits_long",
    EventType.JOB_LOSS_NAN: "job.loss_nan",
    EventType.JOB_APPROVED: "job.approved",
    EventType.JOB_REJECTED: "job.rejected",
    EventType.JOB_APPROVAL_EXPIRED: "job.rejected",
    EventType.JOB_SUBMITTED: "approval.needed",
    EventType.QUOTA_NEARLY_USED: "quota.nearly_used",
    EventType.QUOTA_REACHED: "quota.reached",
    EventType.WORKER_LOST: "worker.lost",
}
DETAILS = (
    "why",
    "reason",
    "failure_class",
    "worker_id",
    "worker_name",
    "step",
    "waited_s",
    "exit_code",
    "note",
)
"""What is passed on of an entry's details: nothing that a later release adds there goes out unseen."""


class Notice(Struct, frozen=True, kw_only=True):
    """Describes an event that is worth a message, with all that the message needs."""

    seq: int
    hash: str
    at: float
    kind: str
    target_type: str
    target_id: str
    title: str
    """How people call it."""
    owner: str
    """Whose it is; empty: nobody's."""
    leads: tuple[str, ...] = ()
    """Who leads the team that it concerns, where it is a team's."""
    details: dict[str, Any] = {}
    approvers: frozenset[str] = frozenset()
    """Who is told that it needs an approval: of those with an endpoint, whoever may give it."""


def kind_of(entry: AuditEntry) -> str | None:
    """Returns the notice's kind; None where the entry by itself is reported to nobody."""
    return SOURCES.get(entry.event_type)


def notice_of(
    entry: AuditEntry,
    kind: str,
    title: str,
    owner: str,
    *,
    leads: tuple[str, ...] = (),
    approvers: frozenset[str] = frozenset(),
) -> Notice:
    return Notice(
        seq=entry.seq,
        hash=entry.hash,
        at=entry.at,
        kind=kind,
        target_type=entry.target_type,
        target_id=entry.target_id,
        title=title or entry.target_id,
        owner=owner,
        leads=leads,
        details={key: entry.details[key] for key in DETAILS if entry.details.get(key) is not None},
        approvers=approvers,
    )


def streams_audit(endpoint: Endpoint) -> bool:
    return AUDIT in endpoint.rules.events


def wants(endpoint: Endpoint, notice: Notice) -> bool:
    """Tells whether the endpoint is to be told of this notice.

    A job concerns its owner, and those who administer.
    """
    rules = endpoint.rules
    if notice.kind not in rules.events:
        return False
    if notice.kind == "approval.needed":
        return endpoint.owner in notice.approvers
    if notice.target_type not in ("job", "quota") or rules.scope == "all":
        return True
    return bool(endpoint.owner) and endpoint.owner in (notice.owner, *notice.leads)


def needed_permissions(events: Collection[str], scope: str) -> set[str]:
    """Returns the permissions that are needed, all of them, to set the endpoint up and for each message."""
    needed = {permission for event in events for permission in NEEDED.get(event, ())}
    if scope == "all":
        needed |= {OF_EVERYBODY, SEES_ALL}
    return needed or {OF_ONESELF}


def message_id(endpoint_id: str, seq: int, entry_hash: str, upto: int) -> str:
    """Returns the message's id: the same each time it is sent, another if a restore has changed the log."""
    text = f"{endpoint_id} {seq} {entry_hash} {upto}"
    return "msg_" + hashlib.sha256(text.encode()).hexdigest()[:32]


def possible_events(channel: Channel) -> tuple[str, ...]:
    return (
        (AUDIT,)
        if channel is Channel.SYSLOG
        else (*KINDS, AUDIT)
        if channel is Channel.WEBHOOK
        else (*KINDS,)
    )
