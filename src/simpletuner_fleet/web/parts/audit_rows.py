"""Shows entries of the audit log to people: with names instead of codes, and a link to what each is about."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.languages import N_, _, current
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.languages.names import (
    FAILURES,
    blame_name,
    event_name,
    failure_name,
    role_name,
    status_name,
    target_name,
    worker_type_name,
)
from simpletuner_fleet.web.parts.refusals import REFUSALS

MAX_VALUE_CHARS = 300
KEYS = {
    "approval": N_("approval"),
    "attempt": N_("attempt"),
    "blame": N_("cause"),
    "bytes": N_("bytes"),
    "checkpoint_first": N_("checkpoint first"),
    "code": N_("code"),
    "config_by": N_("config saved by"),
    "config_name": N_("config"),
    "config_version": N_("config version"),
    "everywhere": N_("everywhere"),
    "exit_code": N_("exit code"),
    "exit_signal": N_("signal"),
    "failure_class": N_("kind of failure"),
    "failure_evidence": N_("evidence"),
    "failures": N_("failures"),
    "files": N_("files"),
    "first": N_("for the first administrator"),
    "from": N_("before"),
    "gpu_count": N_("GPUs"),
    "gpus": N_("GPUs"),
    "keep_days": N_("days kept"),
    "labels": N_("labels"),
    "limits": N_("limits"),
    "losses": N_("losses"),
    "manifests": N_("checkpoints and artifacts"),
    "name": N_("name"),
    "note": N_("note"),
    "now": N_("now"),
    "permissions": N_("permissions"),
    "priority": N_("priority"),
    "reason": N_("reason"),
    "resume_from": N_("starts from"),
    "resumed_from_step": N_("resumed from step"),
    "role": N_("role"),
    "tags": N_("tags"),
    "step": N_("step"),
    "search": N_("filter"),
    "act": N_("action"),
    "jobs": N_("jobs"),
    "in_s": N_("seconds left"),
    "source": N_("told by"),
    "changed": N_("changed"),
    "target": N_("target"),
    "timeout_s": N_("seconds to wait"),
    "to": N_("now"),
    "version": N_("version"),
    "was": N_("before"),
    "why": N_("why"),
    "worker_id": N_("worker"),
    "worker_name": N_("worker"),
    "worker_type": N_("type"),
}
FOR_PROGRAMS = ("epoch",)
"""Of use to nobody who reads; the export has all."""
PLACES = {
    "worker": "/admin/workers/{}",
    "job": "/jobs/{}",
    "config": "/configs/{}",
    "user": "/admin/users#user-{}",
    "token": "/admin/tokens#token-{}",
    "secret": "/admin/settings#secrets",
    "limits": "/admin/settings#limits",
    "notification": "/notifications?endpoint={}",
    "provider": "/admin/users/sign-in#provider-{}",
}
KINDS = {
    "worker": N_("Worker"),
    "job": N_("Job"),
    "config": N_("Config"),
    "user": N_("User"),
    "token": N_("API token"),
    "secret": N_("Secret"),
    "limits": N_("Limits"),
    "dataset": N_("Dataset"),
    "notification": N_("Notification"),
    "provider": N_("Provider"),
    "server": N_("Server"),
}
GONE = frozenset(
    {
        EventType.WORKER_DELETED,
        EventType.WORKER_CLEANED_UP,
        EventType.CONFIG_DELETED,
        EventType.NOTIFICATION_DELETED,
        EventType.PROVIDER_DELETED,
    }
)
BAD = frozenset(
    {
        EventType.WORKER_REGISTRATION_FAILED,
        EventType.USER_LOGIN_FAILED,
        EventType.JOB_FAILED,
        EventType.JOB_LOST,
        EventType.JOB_LOSS_NAN,
        EventType.WORKER_LOST,
    }
)


class AuditRow(Struct, frozen=True, kw_only=True):
    seq: int
    at: float
    event_type: str
    event: str
    bad: bool
    actor: str
    actor_id: str
    ip: str
    kind: str
    target: str
    target_id: str
    href: str
    details: list[tuple[str, str]]


class RefusedGroup(Struct, frozen=True, kw_only=True):
    """Groups registrations from one address that failed in the same way, however often."""

    text: str
    worker: str
    worker_id: str
    count: int
    first_at: float
    last_at: float


def audit_row(entry: AuditEntry, names: Mapping[str, str]) -> AuditRow:
    place = "" if entry.event_type in GONE else PLACES.get(entry.target_type, "")
    kind = KINDS.get(entry.target_type)
    return AuditRow(
        seq=entry.seq,
        at=entry.at,
        event_type=entry.event_type,
        event=event_name(current(), entry.event_type),
        bad=entry.event_type in BAD,
        actor=entry.actor_name,
        actor_id=entry.actor_id,
        ip=entry.ip,
        kind=_(kind) if kind else entry.target_type,
        target=names.get(entry.target_id) or entry.target_id,
        target_id=entry.target_id,
        href=place.format(quote(entry.target_id, safe="")) if entry.target_id else "",
        details=detail_pairs(entry, names),
    )


def detail_pairs(entry: AuditEntry, names: Mapping[str, str]) -> list[tuple[str, str]]:
    details = {key: value for key, value in entry.details.items() if key not in FOR_PROGRAMS}
    if "worker_name" in details:
        details.pop("worker_id", None)
    if details.get("name") == names.get(entry.target_id):
        details.pop("name", None)
    return [
        (_(KEYS[key]) if key in KEYS else key, value_text(entry.event_type, key, value, names))
        for key, value in details.items()
        if value not in (None, "", [], {})
    ]


def value_text(event_type: str, key: str, value: Any, names: Mapping[str, str]) -> str:
    words = current()
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    if (event_type == EventType.USER_ROLE_CHANGED and key in ("was", "now")) or key == "role":
        return role_name(words, str(value))
    if event_type == EventType.WORKER_STATUS_CHANGED and key in ("from", "to"):
        return status_name(words, "worker", str(value))
    if key == "target":
        return target_name(words, str(value))
    if key == "worker_type":
        return worker_type_name(words, str(value))
    if key == "failure_class" or (key == "reason" and value in FAILURES):
        return failure_name(words, str(value))
    if key == "blame":
        return blame_name(words, str(value))
    if key in ("worker_id", "config_by"):
        return names.get(str(value)) or str(value)
    if key == "gpus" and isinstance(value, list):
        return str(len(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={_plain(one)}" for name, one in value.items())[:MAX_VALUE_CHARS]
    if isinstance(value, list):
        return ", ".join(map(str, value))[:MAX_VALUE_CHARS]
    return detail_text(words, str(value))[:MAX_VALUE_CHARS]


def _plain(value: Any) -> str:
    return _("no limit") if value is None else str(value)


def refused_groups(entries: Sequence[AuditEntry], names: Mapping[str, str]) -> list[RefusedGroup]:
    """Groups failed registrations, given newest first; the group that failed last comes first."""
    groups: dict[tuple[str, str, str], list[AuditEntry]] = {}
    for entry in entries:
        key = (entry.ip, str(entry.details.get("code", "")), entry.target_id)
        groups.setdefault(key, []).append(entry)
    return [
        RefusedGroup(
            text=_refused_text(same[0]),
            worker=names.get(worker_id) or worker_id,
            worker_id=worker_id,
            count=len(same),
            first_at=same[-1].at,
            last_at=same[0].at,
        )
        for (_ip, _code, worker_id), same in groups.items()
    ]


def _refused_text(entry: AuditEntry) -> str:
    sentence = REFUSALS.get(str(entry.details.get("code", "")))
    if sentence:
        return _(sentence, ip=entry.ip)
    why = detail_text(current(), str(entry.details.get("why", "")))
    return _("%(ip)s was refused: %(why)s", ip=entry.ip, why=why)
