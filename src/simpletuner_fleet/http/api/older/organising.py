"""Answers requests about approvals, quotas, money and teams as older guides write them."""

from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Name, Remark
from simpletuner_fleet.core.errors import AskedOtherwise, FleetError, Invalid, NotFound
from simpletuner_fleet.core.people.quotas import KIND_NAMES
from simpletuner_fleet.http.api.admin import approvals as approvals_api
from simpletuner_fleet.http.api.older.wording import Older, WordedRequest, Wording, on_behalf
from simpletuner_fleet.http.api.ownership import guarded
from simpletuner_fleet.http.edge.bodies import as_type
from simpletuner_fleet.http.edge.routes import ANY_USER, Answer, Call, Route

RULES = "POST /api/approvals/rules"
QUOTAS = "POST /api/quotas"
REQUEST = "/api/approvals/requests/{id}"
TEAM = "/api/orgs/{org}/teams/{id}"
MICROS = 1_000_000
MOST_AT_ONCE = 100
KINDS = {
    "cost_monthly": "money_month",
    "cost_daily": "money_day",
    "concurrent_jobs": "running_jobs",
    "jobs_per_hour": "jobs_per_hour",
    "local_gpus": "gpus",
}
OLDER_KINDS = {ours: theirs for theirs, ours in KINDS.items()}
ACTIONS = {"block": "refuse", "warn": "warn", "notify": "warn", "require_approval": "approve"}
ROLES = {"researcher": "member", "member": "member", "viewer": "viewer", "admin": "admin"}
APPROVERS = {"lead": "leads", "admin": "admins"}
BY_THE_DAY = (
    "Jobs are counted by the hour: the kind 'jobs_per_hour'; by the day there are 'gpu_hours_day' and 'money_day'. With the "
    "action 'approve', what is over needs somebody's approval: POST /api/quotas."
)
CONDITIONS = {
    "daily_jobs_exceed": BY_THE_DAY,
    "provider": "Ask for what the machine is or costs: a rule with gpu, gpus_over, hours_over or cost_over_micros.",
    "user_level": "A rule is for the jobs of a team, or for everybody's: name the team in 'team'.",
}
RULES_OF_OURS = (
    "A rule has a name and no description. Every one that fits is asked for, in no order, for the jobs of one team ('team') "
    "or of everybody; whoever may approve every job may be exempt (exempts_approvers); one that is not wanted is deleted."
)
NOT_OF_OURS = ("applies_to_provider", "applies_to_level", "priority", "description")
APPROVED_BY = "Leads of the job's team approve ('leads'), admins, or people who are named: 'by' says which."
CONDITION = "A condition is one of cost_exceeds, hardware_type, config_pattern, first_job; a rule of ours may have several."
WHOM = "Say whom, by name or id: user_id."
CHANGED_ANEW = "Set it anew: DELETE /api/approvals/rules/ID, then POST /api/approvals/rules."
EXPIRES = "Requests expire by themselves, after the time that their rule says (expires_s)."
ONE_ORGANISATION = (
    "This server is one organisation. What divides it are teams: POST /api/teams with a name; its quota is one with the "
    "scope 'team', that of all together one with the scope 'all': POST /api/quotas."
)
BUDGET = (
    'What may be spent is a quota: POST /api/quotas with {"kind": "money_month", "scope": "all", "ceiling": MILLIONTHS, '
    '"action": "warn"}; a pool has its own ceilings: PUT /api/pools/NAME.'
)
ESTIMATE = 'Submit it with "dry_run": true: the answer has the estimate, and nothing is started.'
ANOTHERS = "What somebody has used is in GET /api/usage?by=person, and every ceiling in GET /api/quotas."


def rule(asked: WordedRequest) -> WordedRequest:
    """Reads one condition and its threshold. What has no meaning in our rules is refused rather than ignored."""
    said = dict(asked.body)
    if "condition" not in said:
        return asked
    condition, threshold = str(said.pop("condition")), said.pop("threshold", "")
    if condition in CONDITIONS:
        raise AskedOtherwise(next_step=CONDITIONS[condition])
    exempt, active = said.pop("exempt_levels", []), said.pop("is_active", True)
    others = [said.pop(name, None) for name in NOT_OF_OURS]
    if exempt not in ([], ["admin"]) or active is not True or any(others):
        raise AskedOtherwise(next_step=RULES_OF_OURS)
    by = str(said.pop("required_approver_level", "lead"))
    if by not in APPROVERS:
        raise AskedOtherwise(next_step=APPROVED_BY)
    ours = {"by": APPROVERS[by], "exempts_approvers": bool(exempt), **_condition(condition, threshold)}
    return replace(asked, body={**said, **ours})


def _condition(name: str, threshold: Any) -> Wording:
    match name:
        case "cost_exceeds":
            return {"cost_over_micros": _micros(threshold, "$.threshold")}
        case "hardware_type":
            return {"gpu": str(threshold)}
        case "config_pattern":
            return {"config": str(threshold)}
        case "first_job":
            return {"first_job": True}
    raise AskedOtherwise(next_step=CONDITION)


def _micros(amount: Any, path: str) -> int:
    try:
        return round(float(amount) * MICROS)
    except (TypeError, ValueError, OverflowError):
        raise Invalid("Expected an amount of money, such as 50 or 12.50.", path=path) from None


def quota(asked: WordedRequest) -> WordedRequest:
    """Reads a quota. Without a user or a level it was each user's; amounts of money were whole ones, not millionths."""
    said = asked.body
    if "quota_type" not in said:
        return asked
    if said["quota_type"] == "jobs_per_day":
        raise AskedOtherwise(next_step=BY_THE_DAY)
    theirs, ceiling = str(said["quota_type"]), said.get("limit_value")
    kind = KINDS.get(theirs, theirs)
    scope, subject = "each", ""
    if said.get("user_id") is not None:
        scope, subject = "person", str(said["user_id"])
    elif said.get("level_id") is not None:
        level = str(said["level_id"])
        scope, subject = "role", ROLES.get(level, level)
    rest = {
        name: value
        for name, value in said.items()
        if name not in ("quota_type", "limit_value", "user_id", "level_id", "action")
    }
    action = str(said.get("action", "block"))
    return replace(
        asked,
        body={
            "kind": kind,
            "scope": scope,
            "subject": subject,
            "ceiling": _micros(ceiling, "$.limit_value") if kind.startswith("money") else ceiling,
            "action": ACTIONS.get(action, action),
            **rest,
        },
    )


def quota_of_all(asked: WordedRequest) -> WordedRequest:
    _only_one(asked)
    return replace(asked, body={**quota(asked).body, "scope": "all", "subject": ""})


def quota_of_team(asked: WordedRequest) -> WordedRequest:
    _only_one(asked)
    return replace(asked, body={**quota(asked).body, "scope": "team", "subject": asked.path["id"]})


def older_quota(answer: Wording, asked: WordedRequest) -> Wording:
    money = answer["kind"].startswith("money")
    return {
        **answer,
        "quota_type": OLDER_KINDS.get(answer["kind"], answer["kind"]),
        "limit_value": answer["ceiling"] / MICROS if money else answer["ceiling"],
    }


def older_quotas(answer: Wording, asked: WordedRequest) -> Wording:
    return {**answer, "quotas": [older_quota(one, asked) for one in answer["quotas"]]}


def one_quota(answer: Wording, asked: WordedRequest) -> Wording:
    quota_id = asked.path["id"]
    for one in older_quotas(answer, asked)["quotas"]:
        if one["id"] == quota_id:
            return dict(one)
    raise NotFound(f"There is no quota {quota_id}.")


def one_rule(answer: Wording, asked: WordedRequest) -> Wording:
    rule_id = asked.path["rule"]
    for one in answer["rules"]:
        if one["id"] == rule_id:
            return dict(one)
    raise NotFound(f"There is no rule {rule_id}.")


def own_standing(answer: Wording, asked: WordedRequest) -> Wording:
    shown = older_quotas(answer, asked)["quotas"]
    statuses = [
        {
            **one,
            "limit": one["limit_value"],
            "current": one["used"] / MICROS if one["kind"].startswith("money") else one["used"],
            "is_exceeded": one["left"] <= 0,
            "is_warning": one["used"] >= one["warn_at"] * one["ceiling"],
            "percent_used": round(100 * one["used"] / one["ceiling"], 1) if one["ceiling"] else 100.0,
            "source": one["whose"],
        }
        for one in shown
    ]
    reached = [one for one in statuses if one["is_exceeded"] and one["action"] == "refuse"]
    return {
        **answer,
        "statuses": statuses,
        "can_submit": not reached,
        "blocking_reasons": [f"{one['kind']}: {one['limit']} of {one['whose']} are used" for one in reached],
    }


async def quota_types(call: Call[Any]) -> Answer:
    names = [{"name": kind, "description": said} for kind, said in KIND_NAMES.items()]
    return {"types": names, "older_names": KINDS}


def noted(asked: WordedRequest) -> WordedRequest:
    note = asked.body.get("notes") or asked.body.get("reason") or asked.body.get("note") or ""
    rest = {name: value for name, value in asked.body.items() if name not in ("notes", "reason", "note")}
    return replace(asked, body={**rest, "note": note})


def succeeded(answer: Wording, asked: WordedRequest) -> Wording:
    return {**answer, "success": True}


def cancelled(answer: Wording, asked: WordedRequest) -> Wording:
    return {**answer, "success": True, "job_id": answer["id"]}


APPROVE, REJECT = (
    guarded(row)
    for verb in ("approve", "reject")
    for row in approvals_api.ROUTES
    if row.path == f"{approvals_api.APPROVALS}/{{id}}/{verb}"
)


class SeveralBody(Struct, kw_only=True, forbid_unknown_fields=True):
    request_ids: Annotated[list[Name], Meta(min_length=1, max_length=MOST_AT_ONCE)]
    notes: Remark = ""
    reason: Remark = ""


async def approve_several(call: Call[dict[str, Any]]) -> Answer:
    return await _several(call, APPROVE)


async def reject_several(call: Call[dict[str, Any]]) -> Answer:
    return await _several(call, REJECT)


async def _several(call: Call[dict[str, Any]], meant: Route) -> Answer:
    """Decides on them one by one, each as an act of its own: a refusal of one does not stop the others."""
    said: SeveralBody = as_type(call.body or {}, SeveralBody)
    note = approvals_api.NoteBody(note=said.notes or said.reason)
    results = []
    for id_ in said.request_ids:
        try:
            await meant.handler(on_behalf(call, meant, note, WordedRequest(path={"id": id_}, body={})))
        except FleetError as refused:
            results.append({"request_id": id_, "success": False, "error": refused.detail})
        else:
            results.append({"request_id": id_, "success": True, "error": None})
    done = sum(one["success"] is True for one in results)
    return {"results": results, "successful": done, "failed": len(results) - done}


def of_the_one(asked: WordedRequest) -> WordedRequest:
    _only_one(asked)
    return asked


def _only_one(asked: WordedRequest) -> None:
    if asked.path["org"] != "1":
        raise NotFound("This server is one organisation, and its number is 1.", next_step=ONE_ORGANISATION)


def new_team(asked: WordedRequest) -> WordedRequest:
    """Drops the slug, a second name for addresses; a team here has its id for them."""
    _only_one(asked)
    return replace(asked, body={name: value for name, value in asked.body.items() if name != "slug"})


def member(asked: WordedRequest) -> WordedRequest:
    _only_one(asked)
    user = asked.path.get("user") or str(asked.body.get("user_id", ""))
    if not user:
        raise AskedOtherwise(next_step=WHOM)
    return replace(asked, path={**asked.path, "user": user}, body={"role": asked.body.get("role", "member")})


ROWS = [
    Older(asked=RULES, means=RULES, worded=rule),
    Older(asked="GET /api/approvals/rules/{rule}", means="GET /api/approvals/rules", answered=one_rule),
    Older(asked="PATCH /api/approvals/rules/{rule}", instead=CHANGED_ANEW),
    Older(asked=f"GET {REQUEST}", means="GET /api/approvals/{id}"),
    Older(asked="GET /api/approvals/requests/job/{id}", means="GET /api/approvals/{id}"),
    Older(asked="GET /api/approvals/job/{id}", means="GET /api/approvals/{id}"),
    Older(asked="GET /api/approvals/requests/pending/count", means="GET /api/approvals/pending/count"),
    Older(
        asked=f"POST {REQUEST}/approve",
        means="POST /api/approvals/{id}/approve",
        worded=noted,
        answered=succeeded,
    ),
    Older(
        asked=f"POST {REQUEST}/reject",
        means="POST /api/approvals/{id}/reject",
        worded=noted,
        answered=succeeded,
    ),
    Older(asked=f"POST {REQUEST}/cancel", means="POST /api/queue/{id}/cancel", answered=cancelled),
    Older(asked="POST /api/approvals/requests/bulk-approve", does=approve_several, permission=ANY_USER),
    Older(asked="POST /api/approvals/requests/bulk-reject", does=reject_several, permission=ANY_USER),
    Older(asked="POST /api/approvals/expire", instead=EXPIRES),
    Older(asked=QUOTAS, means=QUOTAS, worded=quota, answered=older_quota),
    Older(asked="GET /api/quotas", means="GET /api/quotas", answered=older_quotas),
    Older(asked="GET /api/quotas/me", means="GET /api/quotas/me", answered=own_standing),
    Older(asked="GET /api/quotas/types", does=quota_types, permission=ANY_USER),
    Older(asked="GET /api/quotas/{id}", means="GET /api/quotas", answered=one_quota),
    Older(asked="GET /api/quotas/user/{user}", instead=ANOTHERS),
    Older(asked="POST /api/quotas/cost-estimate", instead=ESTIMATE),
    Older(asked="POST /api/cloud/cost-estimate", instead=ESTIMATE),
    Older(asked="PUT /api/cloud/providers/{provider}/config", instead=BUDGET),
    Older(asked="GET /api/cloud/metrics/cost-limit-status", means="GET /api/budgets"),
    Older(asked="GET /api/metrics/cost-limit/status", means="GET /api/budgets"),
    Older(asked="GET /api/metrics/costs", means="GET /api/usage"),
    Older(asked="GET /api/metrics/usage", means="GET /api/usage"),
    Older(asked="GET /api/orgs", means="GET /api/teams"),
    Older(asked="POST /api/orgs", instead=ONE_ORGANISATION),
    Older(asked="POST /api/orgs/{org}/quotas", means=QUOTAS, worded=quota_of_all, answered=older_quota),
    Older(asked=f"POST {TEAM}/quotas", means=QUOTAS, worded=quota_of_team, answered=older_quota),
    Older(asked="GET /api/orgs/{org}/teams", means="GET /api/teams", worded=of_the_one),
    Older(asked="POST /api/orgs/{org}/teams", means="POST /api/teams", worded=new_team),
    Older(asked=f"GET {TEAM}", means="GET /api/teams/{id}", worded=of_the_one),
    Older(asked=f"DELETE {TEAM}", means="DELETE /api/teams/{id}", worded=of_the_one),
    Older(asked=f"GET {TEAM}/members", means="GET /api/teams/{id}", worded=of_the_one),
    Older(asked=f"POST {TEAM}/members", means="PUT /api/teams/{id}/members/{user}", worded=member),
    Older(asked=f"PATCH {TEAM}/members/{{user}}", means="PUT /api/teams/{id}/members/{user}", worded=member),
    Older(
        asked=f"DELETE {TEAM}/members/{{user}}",
        means="DELETE /api/teams/{id}/members/{user}",
        worded=of_the_one,
    ),
]
