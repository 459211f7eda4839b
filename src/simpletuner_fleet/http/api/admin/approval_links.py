"""Lets an approver decide by the link in a mail without logging in: a GET changes nothing, a POST decides, once."""

from typing import Annotated, Any

from msgspec import Meta, Struct

from simpletuner_fleet.core.bounds import FreeText, Remark
from simpletuner_fleet.http.api.admin.approvals import APPROVALS, TAGS
from simpletuner_fleet.http.api.deps import whole_deps
from simpletuner_fleet.http.edge.routes import KIB, PUBLIC, Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator.organising import approval_links
from simpletuner_fleet.orchestrator.organising.approval_links import ApprovalVerdict, LinkedApproval

LINK = f"{APPROVALS}/link"


class ApprovalLinkQuery(Struct, kw_only=True):
    k: Annotated[str, Meta(max_length=approval_links.MAX_CHARS)]


class ApprovalLinkView(Struct, kw_only=True):
    job_id: str
    job_name: str
    owner_name: str
    gpus: int
    why: list[str]
    """The names of what asked for an approval."""
    approver: str
    """In whose name the link decides."""
    expires_at: str | None


class VerdictBody(Struct, kw_only=True, forbid_unknown_fields=True):
    k: FreeText
    verdict: ApprovalVerdict
    note: Remark = ""


def link_view(linked: LinkedApproval) -> ApprovalLinkView:
    job = linked.job
    return ApprovalLinkView(
        job_id=job.id,
        job_name=job.name or job.config_name,
        owner_name=linked.owner_name,
        gpus=job.requires.gpus,
        why=[one.why for one in linked.approval.requirements],
        approver=linked.voter.name,
        expires_at=rfc3339(linked.link.expires_at),
    )


async def looked_at(call: Call[Any], secret: str) -> ApprovalLinkView:
    """Returns what the link leads to, as its approver may see it: the link itself says who looks."""
    return link_view(await approval_links.look(whole_deps(call).fleet, secret))


async def look_at_link(call: Call[None]) -> ApprovalLinkView:
    return await looked_at(call, call.query.k)


async def decide_by_link(call: Call[VerdictBody]) -> Done:
    body = call.body
    linked = await approval_links.decide(whole_deps(call).fleet, body.k, body.verdict, body.note, call.ip)
    return Done(id=linked.job.id)


ROUTES = [
    Route(
        "GET",
        LINK,
        look_at_link,
        PUBLIC,
        answer=ApprovalLinkView,
        summary="What a link in a mail is good for; looking does not use it up",
        query=ApprovalLinkQuery,
        tags=TAGS,
    ),
    Route(
        "POST",
        LINK,
        decide_by_link,
        PUBLIC,
        VerdictBody,
        Done,
        "Approve or reject a job by the link in a mail, once",
        max_body_bytes=8 * KIB,
        tags=TAGS,
    ),
]
