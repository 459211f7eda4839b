"""Defines the links in messages by which an approver decides without logging in.

It holds rules only. A link is bound to one person and to one request for an approval. It is used up by what it does:
once that person has said yes, or anybody no, there is nothing left that it could decide.
"""

from msgspec import Struct

from simpletuner_fleet.core.errors import ApprovalLinkOver
from simpletuner_fleet.core.people.approvals import Approval, ApprovalState


class ApprovalLink(Struct, frozen=True, kw_only=True):
    """Holds what is sealed in an approval link: its user, its job, and until when it is valid."""

    user_id: str
    job_id: str
    asked_at: float
    """When the approval was asked for: a link is not good for a later request about the same job."""
    made_at: float
    expires_at: float


def link_for(user_id: str, approval: Approval, life_s: float, now: float) -> ApprovalLink | None:
    """Returns a link; None where such links are switched off, or the request ends before anybody could click."""
    until = min(now + life_s, approval.expires_at if approval.expires_at is not None else now + life_s)
    if until <= now:
        return None
    return ApprovalLink(
        user_id=user_id, job_id=approval.job_id, asked_at=approval.asked_at, made_at=now, expires_at=until
    )


def check_link(link: ApprovalLink, approval: Approval, now: float, none_before: float) -> None:
    """Raises ApprovalLinkOver unless the link still decides something. Those made until `none_before` never do."""
    if now >= link.expires_at or link.made_at <= none_before or link.asked_at != approval.asked_at:
        raise ApprovalLinkOver
    if approval.state is not ApprovalState.PENDING or any(one.by == link.user_id for one in approval.votes):
        raise ApprovalLinkOver
