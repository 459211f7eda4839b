"""Describes approval rules in words: which jobs a rule is about, who must approve them, and by when."""

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import asdict

from simpletuner_fleet.core.money.amounts import plain_amount
from simpletuner_fleet.core.people.approvals import DAY_S, ApprovalRule, Approvers
from simpletuner_fleet.languages import N_, _, ngettext
from simpletuner_fleet.web.frame.formatting import local_amount

APPROVERS = {
    Approvers.LEADS: N_("leads of the job's team, or whoever may approve every job"),
    Approvers.ADMINS: N_("whoever may approve every job"),
    Approvers.PEOPLE: N_("people who are named"),
}
HOUR_S = 3600.0
EXPIRIES = {
    HOUR_S: N_("1 hour"),
    8 * HOUR_S: N_("8 hours"),
    DAY_S: N_("1 day"),
    3 * DAY_S: N_("3 days"),
    7 * DAY_S: N_("7 days"),
    30 * DAY_S: N_("30 days"),
}


class RuleRow(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    conditions: list[str]
    approvers: str
    count: int
    expires_s: float
    exempts_approvers: bool


def rule_row(rule: ApprovalRule, names: Mapping[str, str], currency: str) -> RuleRow:
    """Returns the row of a rule. `names` has people and teams by id; those who are gone are shown by id."""
    named = ", ".join(names.get(one, one) for one in rule.people)
    return RuleRow(
        id=rule.id,
        name=rule.name,
        conditions=list(conditions(rule, names, currency)) or [_("every job")],
        approvers=named or _(APPROVERS[rule.by]),
        count=rule.count,
        expires_s=rule.expires_s,
        exempts_approvers=rule.exempts_approvers,
    )


class RuleDraft(ApprovalRule, frozen=True, kw_only=True):
    """Holds a rule as its form shows it."""

    cost: str
    team_name: str
    people_names: list[str]


def rule_draft(rule: ApprovalRule, names: Mapping[str, str]) -> RuleDraft:
    return RuleDraft(
        **asdict(rule),
        cost=""
        if rule.cost_over_micros is None
        else plain_amount(rule.cost_over_micros).rstrip("0").rstrip("."),
        team_name=names.get(rule.team, rule.team),
        people_names=[names.get(one, one) for one in rule.people],
    )


def conditions(rule: ApprovalRule, names: Mapping[str, str], currency: str) -> Iterator[str]:
    if rule.cost_over_micros is not None:
        amount = local_amount(rule.cost_over_micros, currency)
        yield _("may cost more than %(amount)s, or nobody can say what", amount=amount)
    if rule.gpus_over is not None:
        yield ngettext("more than %(n)s GPU", "more than %(n)s GPUs", rule.gpus_over)
    if rule.hours_over is not None:
        yield _("a time limit over %(hours)s h, or none", hours=f"{rule.hours_over:g}")
    if rule.gpu:
        yield _("can run on GPUs named %(glob)s alone", glob=rule.gpu)
    if rule.first_job:
        yield _("its owner has completed no job yet")
    if rule.config:
        yield _("a config named %(glob)s", glob=rule.config)
    if rule.trainer:
        yield _("the trainer %(name)s", name=rule.trainer)
    if rule.team:
        yield _("of the team %(name)s", name=names.get(rule.team, rule.team))
