"""Turns entries of the audit log that people are notified of into notices, with the names of what they are about."""

from collections.abc import Collection, Sequence

from msgspec import Struct

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.core.notices.endpoint import Channel, Endpoint
from simpletuner_fleet.core.notices.kinds import Notice, kind_of, needed_permissions, notice_of
from simpletuner_fleet.core.people.approvals import is_to_decide
from simpletuner_fleet.core.people.teams import TeamRole, role_in
from simpletuner_fleet.delivery.sender import Destination
from simpletuner_fleet.engine.memory.organisation import Organisation
from simpletuner_fleet.engine.memory.owners import LOCAL, TOKEN, USER, holds_now, voter_now
from simpletuner_fleet.engine.readable import readable_job
from simpletuner_fleet.languages import ENGLISH
from simpletuner_fleet.orchestrator.notices.endpoints import address_seal, key_seal
from simpletuner_fleet.orchestrator.organising.approval_links import link_path, readable_waiting_approval
from simpletuner_fleet.ports import Vault, View

AT_A_TIME = 500


class NoticesRead(Struct, frozen=True, kw_only=True):
    entries: list[AuditEntry]
    notices: list[Notice]
    last: int
    """The number of the last entry that was read."""


def read_chunk(view: View, organisation: Organisation, after: int, owners: Collection[str]) -> NoticesRead:
    """Reads on from an entry, some hundred at a time.

    A deleted job is named by its id, and only those who are notified of everybody's jobs are told of it. `owners` are
    those who want to be told of approvals that wait for them.
    """
    entries = view.audit_range(after, AT_A_TIME)
    worth = [(entry, kind) for entry in entries if (kind := kind_of(entry))]
    notices = [
        notice for entry, kind in worth if (notice := _noticed(view, organisation, owners, entry, kind))
    ]
    return NoticesRead(entries=entries, notices=notices, last=entries[-1].seq if entries else after)


def _noticed(
    view: View, organisation: Organisation, owners: Collection[str], entry: AuditEntry, kind: str
) -> Notice | None:
    """Returns the notice of an entry.

    Returns None for a submission that needs no approval, has it by now, or whose approvers do not want to be told.
    """
    if entry.target_type == "job":
        job = readable_job(view, entry.target_id)
        approvers: frozenset[str] = frozenset()
        if kind == "approval.needed":
            approvers = deciding(view, organisation, entry.target_id, owners) if job else approvers
            if not approvers:
                return None
        title, owner = ((job.name or job.config_name), job.owner) if job else ("", "")
        return notice_of(entry, kind, title, owner, approvers=approvers)
    if entry.target_type == "quota":
        said = entry.details
        title = f"{said.get('kind', '')} ({said.get('whose', '')})"
        return notice_of(
            entry,
            kind,
            title,
            str(said.get("owner", "")),
            leads=_leads(organisation, str(said.get("team", ""))),
        )
    return notice_of(entry, kind, str(entry.details.get("worker_name", "")), "")


def deciding(view: View, organisation: Organisation, job_id: str, owners: Collection[str]) -> frozenset[str]:
    """Returns those of `owners` who may decide on the job at this moment."""
    waiting = readable_waiting_approval(view, job_id)
    if waiting is None:
        return frozenset()
    job, approval = waiting
    voters = ((one, voter_now(view, organisation, one, job)) for one in owners)
    return frozenset(one for one, voter in voters if voter is not None and is_to_decide(approval, voter))


def approvals_kept(
    view: View, organisation: Organisation, endpoint: Endpoint, notices: Sequence[Notice]
) -> tuple[Notice, ...]:
    """Leaves out approvals that this owner need not give any more: hours may pass between reading and sending."""
    whom = (endpoint.owner,)
    return tuple(
        one
        for one in notices
        if one.kind != "approval.needed" or deciding(view, organisation, one.target_id, whom)
    )


def approval_paths(
    view: View, vault: Vault | None, endpoint: Endpoint, notices: Sequence[Notice], life_s: float, now: float
) -> dict[str, str]:
    """Returns a link by job for each approval that is asked for.

    Only mail has such links: only a mailbox belongs to one person.
    """
    if vault is None or endpoint.channel is not Channel.EMAIL:
        return {}
    jobs = [one.target_id for one in notices if one.kind == "approval.needed"]
    paths = ((job_id, link_path(view, vault, endpoint.owner, job_id, life_s, now)) for job_id in jobs)
    return {job_id: path for job_id, path in paths if path}


def _leads(organisation: Organisation, team_id: str) -> tuple[str, ...]:
    team = organisation.teams.get(team_id)
    return (
        tuple(one for one in team.members if role_in(team, frozenset({one})) is TeamRole.LEAD) if team else ()
    )


def destination_of(view: View, vault: Vault | None, endpoint: Endpoint, now: float) -> Destination | str:
    """Returns where a message goes, with secrets unsealed, or a text that says why nothing may be sent there."""
    permissions = needed_permissions(endpoint.rules.events, endpoint.rules.scope)
    held = endpoint.owner == LOCAL or all(holds_now(view, endpoint.owner, one) for one in permissions)
    if not held or _has_expired(view, endpoint.owner, now):
        return "its owner may not see this any more"
    address = vault.unseal(address_seal(endpoint.id), endpoint.sealed_address) if vault else None
    keys = _keys(vault, endpoint, now)
    if address is None or (endpoint.channel is Channel.WEBHOOK and not keys):
        return "its address or secret cannot be opened: the server's key for secrets is another one"
    return Destination(
        channel=endpoint.channel, address=address, language=_language(view, endpoint), keys=keys
    )


def _has_expired(view: View, owner: str, now: float) -> bool:
    token = view.api_token(owner) if owner.startswith(TOKEN) else None
    return token is not None and token.expires_at is not None and token.expires_at <= now


def _keys(vault: Vault | None, endpoint: Endpoint, now: float) -> tuple[str, ...]:
    valid = [key for key in endpoint.keys if key.until is None or now < key.until]
    opened: Sequence[str | None] = (
        [vault.unseal(key_seal(endpoint.id, key.number), key.sealed) for key in valid] if vault else []
    )
    return tuple(key for key in opened if key)


def _language(view: View, endpoint: Endpoint) -> str:
    if endpoint.rules.language:
        return endpoint.rules.language
    user = view.user(endpoint.owner) if endpoint.owner.startswith(USER) else None
    return user.language if user and user.language else ENGLISH
