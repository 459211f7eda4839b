"""Makes approval links when a mail is sent. They can be opened as often as one likes, and used once."""

import math
from enum import StrEnum

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import ApprovalLinkOver, UnreadableRow
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.jobs.decision import job_event
from simpletuner_fleet.core.jobs.job import Hold, Job, JobState
from simpletuner_fleet.core.people.approval_links import ApprovalLink, check_link, link_for
from simpletuner_fleet.core.people.approvals import Approval, Voter, asked_for, check_voter
from simpletuner_fleet.core.restoring import LINKS_SINCE
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.kept_settings import read_setting
from simpletuner_fleet.engine.memory.organisation import Organisation
from simpletuner_fleet.engine.memory.owners import USER, name_of, voter_now
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.organising.approvals import BY_SETTING, approve_within, reject_within
from simpletuner_fleet.ports import Vault, View

SEAL = "approval link"
PAGE = "/approve"
MAX_CHARS = 2_000


class ApprovalVerdict(StrEnum):
    APPROVE = "approve"
    REJECT = "reject"


class LinkedApproval(Struct, frozen=True, kw_only=True):
    """Says what an approval link is for: the job, its approval, and who decides by the link."""

    link: ApprovalLink
    job: Job
    approval: Approval
    voter: Voter
    owner_name: str


def waiting_approval(view: View, job_id: str) -> tuple[Job, Approval] | None:
    """Returns the job and the approval that it waits for; None where it waits for none."""
    job = view.job(job_id)
    if job is None or job.state is not JobState.BLOCKED or job.hold is not Hold.APPROVAL:
        return None
    return job, view.approval(job_id) or asked_for(job, [BY_SETTING], (), job.created_at)


def readable_waiting_approval(view: View, job_id: str) -> tuple[Job, Approval] | None:
    """Returns them for whoever goes on with others where the rows of one cannot be read: then None."""
    try:
        return waiting_approval(view, job_id)
    except UnreadableRow:
        return None


def link_path(view: View, vault: Vault, user_id: str, job_id: str, life_s: float, now: float) -> str:
    """Returns the path of a link for this approver; '' where there is no link to give."""
    waiting = readable_waiting_approval(view, job_id) if user_id.startswith(USER) else None
    link = link_for(user_id, waiting[1], life_s, now) if waiting else None
    if link is None:
        return ""
    sealed = vault.seal(SEAL, msgspec.json.encode(link).decode())
    return f"{PAGE}?k={sealed.translate(TO_URL).rstrip('=')}"


TO_URL, FROM_URL = str.maketrans("+/", "-_"), str.maketrans("-_", "+/")


async def look(fleet: Fleet, secret: str) -> LinkedApproval:
    """Says what a link is for. Looking changes nothing: programs that scan mails for bad links look, too."""
    link, organisation = _opened(fleet.vault, secret), fleet.organisation
    return await fleet.read(lambda view: _linked(view, organisation, link, fleet.clock.now()))


async def decide(fleet: Fleet, secret: str, verdict: ApprovalVerdict, note: str, ip: str) -> LinkedApproval:
    """Decides as the person the link was made for, with the permissions they have at this moment."""
    link = _opened(fleet.vault, secret)

    def step(transaction: Transaction) -> LinkedApproval:
        linked = _linked(transaction.tx, transaction.organisation, link, transaction.now)
        actor = Actor(link.user_id, linked.voter.name, ip)
        transaction.record(job_event(EventType.APPROVAL_LINK_USED, linked.job, actor, verdict=str(verdict)))
        how = approve_within if verdict is ApprovalVerdict.APPROVE else reject_within
        how(transaction, link.job_id, linked.voter, actor, note)
        return linked

    return await fleet.act(step)


def _opened(vault: Vault | None, secret: str) -> ApprovalLink:
    if vault is None or len(secret) > MAX_CHARS or not secret.isascii():
        raise ApprovalLinkOver
    padded = secret.translate(FROM_URL) + "=" * (-len(secret) % 4)
    text = vault.unseal(SEAL, padded)
    if text is None:
        raise ApprovalLinkOver
    return msgspec.json.decode(text, type=ApprovalLink)


def _linked(view: View, organisation: Organisation, link: ApprovalLink, now: float) -> LinkedApproval:
    waiting = waiting_approval(view, link.job_id)
    if waiting is None:
        raise ApprovalLinkOver
    job, approval = waiting
    # Where nobody knows since when they hold, none does: a restore may have taken away who could approve.
    since = read_setting(view, LINKS_SINCE, float, math.inf) or 0.0
    check_link(link, approval, now, since)
    voter = voter_now(view, organisation, link.user_id, job)
    if voter is None:
        raise ApprovalLinkOver
    check_voter(approval, voter)
    return LinkedApproval(
        link=link, job=job, approval=approval, voter=voter, owner_name=name_of(view, job.owner)
    )
