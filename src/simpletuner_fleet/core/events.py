"""Names the facts that are recorded, in the past tense: one audit entry each, in the transaction of its act."""

from enum import StrEnum
from typing import Any

from msgspec import Struct


class EventType(StrEnum):
    WORKER_CREATED = "worker.created"
    WORKER_REGISTERED = "worker.registered"
    WORKER_REGISTRATION_FAILED = "worker.registration_failed"
    WORKER_CONNECTED = "worker.connected"
    WORKER_STATUS_CHANGED = "worker.status_changed"
    WORKER_DISCONNECTED = "worker.disconnected"
    WORKER_LOST = "worker.lost"
    WORKER_DRAINED = "worker.drained"
    WORKER_RESUMED = "worker.resumed"
    WORKER_INTERRUPTED = "worker.interrupted"
    WORKER_SET_ASIDE = "worker.set_aside"
    WORKER_IN_USE_AGAIN = "worker.in_use_again"
    WORKER_LABELS_SET = "worker.labels_set"
    WORKER_PRICE_SET = "worker.price_set"
    WORKER_TOKEN_ROTATED = "worker.token_rotated"
    WORKER_DELETED = "worker.deleted"
    WORKER_CLEANED_UP = "worker.cleaned_up"
    JOB_SUBMITTED = "job.submitted"
    JOB_APPROVED = "job.approved"
    JOB_REJECTED = "job.rejected"
    JOB_APPROVAL_GIVEN = "job.approval_given"
    APPROVAL_LINK_USED = "job.approval_link_used"
    JOB_APPROVAL_EXPIRED = "job.approval_expired"
    JOB_UNBLOCKED = "job.unblocked"
    JOB_DISPATCHED = "job.dispatched"
    JOB_ACCEPTED = "job.accepted"
    JOB_STARTED = "job.started"
    JOB_OFFER_EXPIRED = "job.offer_expired"
    JOB_LOST = "job.lost"
    JOB_READOPTED = "job.readopted"
    JOB_RELEASED = "job.released"
    JOB_REQUEUED = "job.requeued"
    JOB_CANCEL_REQUESTED = "job.cancel_requested"
    JOB_STOP_REQUESTED = "job.stop_requested"
    JOB_CHECKPOINT_REQUESTED = "job.checkpoint_requested"
    JOB_VALIDATION_REQUESTED = "job.validation_requested"
    JOB_PRIORITY_SET = "job.priority_set"
    JOB_TAGGED = "job.tagged"
    JOB_NOTED = "job.noted"
    JOB_EDITED = "job.edited"
    JOBS_CHOSEN = "job.chosen_by_filter"
    JOB_PINNED = "job.checkpoint_pinned"
    JOB_UNPINNED = "job.checkpoint_unpinned"
    JOB_COMPLETED = "job.completed"
    JOB_RESULTS_STORED = "job.results_stored"
    JOB_FAILED = "job.failed"
    JOB_CANCELLED = "job.cancelled"
    JOB_EMPTIED = "job.emptied"
    JOB_DELETED = "job.deleted"
    JOB_STORED = "job.stored"
    JOB_DROPPED = "job.dropped"
    JOB_LOSS_NAN = "job.loss_nan"
    JOB_WAITS_LONG = "job.waits_long"
    PUBLISH_ASKED = "job.publish_asked"
    PUBLISHED = "job.published"
    PUBLISH_FAILED = "job.publish_failed"
    CONFIG_SAVED = "config.saved"
    CONFIG_DELETED = "config.deleted"
    SECRET_SAVED = "secret.saved"
    SECRET_DELETED = "secret.deleted"
    SECRET_GIVEN = "secret.given"
    DATASET_ADDED = "dataset.added"
    DATASET_DELETED = "dataset.deleted"
    TOKEN_CREATED = "token.created"
    TOKEN_REVOKED = "token.revoked"
    USER_CREATED = "user.created"
    USER_LOGIN = "user.login"
    USER_LOGIN_FAILED = "user.login_failed"
    USER_LOGOUT = "user.logout"
    USER_PASSWORD_SET = "user.password_set"
    USER_LINK_MADE = "user.link_made"
    USER_ROLE_CHANGED = "user.role_changed"
    USER_DISABLED = "user.disabled"
    USER_ENABLED = "user.enabled"
    SCIM_USER_SET = "scim.user_set"
    SCIM_USER_DELETED = "scim.user_deleted"
    SCIM_GROUP_SET = "scim.group_set"
    SCIM_GROUP_DELETED = "scim.group_deleted"
    PROVIDER_ADDED = "sign_in.provider_added"
    PROVIDER_CHANGED = "sign_in.provider_changed"
    PROVIDER_TESTED = "sign_in.provider_tested"
    PROVIDER_DELETED = "sign_in.provider_deleted"
    ROLE_SET = "role.set"
    ROLE_DELETED = "role.deleted"
    LIMITS_SET = "limits.set"
    NOTIFICATION_ADDED = "notification.added"
    NOTIFICATION_CHANGED = "notification.changed"
    NOTIFICATION_DELETED = "notification.deleted"
    NOTIFICATION_TESTED = "notification.tested"
    NOTIFICATION_PAUSED = "notification.paused"
    NOTIFICATION_RESUMED = "notification.resumed"
    NOTIFICATION_REPLAYED = "notification.replayed"
    NOTIFICATION_KEY_ROTATED = "notification.key_rotated"
    POOL_SAVED = "pool.saved"
    POOL_DELETED = "pool.deleted"
    POOLS_RESUMED = "pool.resumed"
    MACHINE_WANTED = "machine.wanted"
    MACHINE_ASKED = "machine.asked"
    MACHINE_BOOTING = "machine.booting"
    MACHINE_JOINED = "machine.joined"
    MACHINE_DRAINING = "machine.draining"
    MACHINE_DESTROYING = "machine.destroying"
    MACHINE_GONE = "machine.gone"
    APPROVAL_RULE_SET = "approval_rule.set"
    APPROVAL_RULE_DELETED = "approval_rule.deleted"
    QUOTA_SET = "quota.set"
    QUOTA_DELETED = "quota.deleted"
    QUOTA_NEARLY_USED = "quota.nearly_used"
    QUOTA_REACHED = "quota.reached"
    PRICE_SET = "price.set"
    PRICE_DELETED = "price.deleted"
    CURRENCY_SET = "currency.set"
    TEAM_CREATED = "team.created"
    TEAM_CHANGED = "team.changed"
    TEAM_DELETED = "team.deleted"
    TEAM_MEMBER_SET = "team.member_set"
    SERVER_STARTED = "server.started"
    SERVER_RESTORED = "server.restored"
    ADMIN_TOKEN_SET = "server.admin_token_set"
    AUDIT_CUT = "server.audit_cut"
    AUDIT_CONTRADICTED = "server.audit_contradicted"


SECURITY_EVENTS = frozenset(
    {
        EventType.WORKER_CREATED,
        EventType.WORKER_REGISTRATION_FAILED,
        EventType.WORKER_TOKEN_ROTATED,
        EventType.WORKER_DELETED,
        EventType.APPROVAL_LINK_USED,
        EventType.SECRET_SAVED,
        EventType.SECRET_DELETED,
        EventType.TOKEN_CREATED,
        EventType.TOKEN_REVOKED,
        EventType.SERVER_RESTORED,
        EventType.ADMIN_TOKEN_SET,
        EventType.AUDIT_CUT,
        EventType.AUDIT_CONTRADICTED,
        EventType.TEAM_MEMBER_SET,
        EventType.NOTIFICATION_KEY_ROTATED,
        *(
            kind
            for kind in EventType
            if kind.split(".")[0] in ("user", "scim", "sign_in", "role", "approval_rule")
        ),
    }
)
"""Who can get in, who may do more than before, and what was tried: what somebody looks at after an incident."""
SECURITY = "security"
"""Stands for all of them where a type of event is asked for."""


class Actor(Struct, frozen=True):
    """Identifies who caused an event: an API token, a user, a worker or the orchestrator itself.

    The id begins with `t_`, `u_` or `w_` for the first three.
    """

    id: str
    name: str
    ip: str = ""


ORCHESTRATOR = Actor("orchestrator", "orchestrator")


class Event(Struct, frozen=True, kw_only=True):
    type: EventType
    actor: Actor
    target_type: str
    target_id: str
    details: dict[str, Any] = {}
