import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid, MayNotApprove
from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.people.approvals import (
    ApprovalRule,
    ApprovalState,
    Approvers,
    JobFacts,
    Requirement,
    Voter,
    applies,
    asked_for,
    check_voter,
    checked_rule,
    missing,
    with_vote,
)
from tests.core.builders import NOW, a_job

JOB = replace(
    a_job(requires=Requirements(owner="u_ann", team="tm", gpus=4, trainer="command")),
    team="tm",
    time_limit_s=7200.0,
    config_name="sdxl-cats",
)
FACTS = JobFacts(is_first=True, only_on=frozenset({"*H100*"}))
RULE = ApprovalRule(id="ar", name="large")
LEA = Voter(ids=frozenset({"u_lea", "t_1"}), name="lea", leads_its_team=True)
ROOT = Voter(ids=frozenset({"u_root"}), name="root", above=True)
TOM = Voter(ids=frozenset({"u_tom"}), name="tom")


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({}, True),
        ({"gpus_over": 3}, True),
        ({"gpus_over": 4}, False),
        ({"hours_over": 1.5}, True),
        ({"hours_over": 2.0}, False),
        ({"first_job": True}, True),
        ({"config": "sdxl-*"}, True),
        ({"config": "flux-*"}, False),
        ({"trainer": "command"}, True),
        ({"trainer": "simpletuner"}, False),
        ({"team": "tm"}, True),
        ({"team": "tm_other"}, False),
        ({"gpu": "*H100*"}, True),
        ({"gpu": "*A100*"}, False),
        ({"gpus_over": 3, "config": "flux-*"}, False),
    ],
)
def test_a_rule_holds_where_all_that_it_names_is_so(conditions: dict[str, object], holds: bool) -> None:
    assert applies(replace(RULE, **conditions), JOB, FACTS) is holds


def test_a_job_without_an_end_is_longer_than_any() -> None:
    assert applies(replace(RULE, hours_over=1e6), replace(JOB, time_limit_s=None), FACTS)
    assert not applies(replace(RULE, first_job=True), JOB, JobFacts(is_first=False))


def test_every_requirement_needs_its_own_and_nobody_counts_twice() -> None:
    asked = asked_for(
        JOB,
        [
            Requirement(why="large", count=2),
            Requirement(why="finance", by=Approvers.PEOPLE, people=("u_tom",)),
        ],
        [3600.0, 60.0],
        NOW,
    )
    assert asked.expires_at == NOW + 60.0
    one = with_vote(asked, LEA, "u_lea", "fine", NOW)
    assert [requirement.why for requirement in missing(one)] == ["large", "finance"]
    with pytest.raises(MayNotApprove, match="already"):
        with_vote(one, LEA, "u_lea", "", NOW)
    two = with_vote(one, TOM, "u_tom", "", NOW)
    assert [requirement.why for requirement in missing(two)] == ["large"]
    three = with_vote(two, ROOT, "u_root", "go", NOW + 5)
    assert (three.state, three.decided_by, three.note) == (ApprovalState.APPROVED, "root", "go")


def test_nobody_decides_on_what_is_their_own_or_not_theirs_to_decide() -> None:
    asked = asked_for(JOB, [Requirement(why="large", by=Approvers.ADMINS)], (), NOW)
    assert asked.expires_at is None
    with pytest.raises(MayNotApprove, match="of their own"):
        check_voter(asked, replace(ROOT, ids=frozenset({"t_9", "u_ann"})))
    for voter in (LEA, TOM):
        with pytest.raises(MayNotApprove):
            check_voter(asked, voter)
    check_voter(asked, ROOT)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"count": 0},
        {"hours_over": -1.0},
        {"hours_over": 1e9},
        {"gpus_over": -1},
        {"gpus_over": 10**9},
        {"expires_s": 1.0},
        {"by": Approvers.PEOPLE},
        {"people": ("u_tom",)},
        {"by": Approvers.PEOPLE, "people": ("u_tom",), "count": 2},
    ],
)
def test_rules_that_nobody_could_meet_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(Invalid):
        checked_rule(replace(RULE, **fields))
