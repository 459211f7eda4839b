"""A rule about approvals says in words all that it asks, and a rule that asks nothing says that, too."""

from simpletuner_fleet.core.people.approvals import ApprovalRule, Approvers
from simpletuner_fleet.web.parts.approval_rules import rule_row

NAMES = {"t_1": "vision", "u_1": "Ann"}


def test_every_condition_is_told_in_words() -> None:
    rule = ApprovalRule(
        id="ar_1",
        name="all",
        gpus_over=1,
        hours_over=1.5,
        cost_over_micros=12_500_000,
        gpu="*H100*",
        first_job=True,
        config="sdxl-*",
        trainer="command",
        team="t_1",
        by=Approvers.PEOPLE,
        people=("u_1", "u_gone"),
    )
    row = rule_row(rule, NAMES, "EUR")
    assert row.conditions == [
        "may cost more than 12.50 EUR, or nobody can say what",
        "more than 1 GPU",
        "a time limit over 1.5 h, or none",
        "can run on GPUs named *H100* alone",
        "its owner has completed no job yet",
        "a config named sdxl-*",
        "the trainer command",
        "of the team vision",
    ]
    assert row.approvers == "Ann, u_gone"


def test_zero_is_a_condition_and_none_is_every_job() -> None:
    zero = rule_row(ApprovalRule(id="ar_1", name="any GPU", gpus_over=0, cost_over_micros=0), NAMES, "USD")
    assert len(zero.conditions) == 2
    anything = rule_row(ApprovalRule(id="ar_2", name="ask", by=Approvers.ADMINS), NAMES, "USD")
    assert (anything.conditions, anything.approvers) == (["every job"], "whoever may approve every job")
