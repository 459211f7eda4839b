from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid, NotForTeam, NotFound, NotInTeam
from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.people.teams import (
    Membership,
    Team,
    TeamRole,
    TeamRules,
    allowlist_of,
    check_use,
    checked_rules,
    named_team,
    priority_ceiling,
    team_for,
    visibility_of,
)
from simpletuner_fleet.core.people.visibility import Belonging, Visibility, VisibilityScope, may_see
from simpletuner_fleet.core.placement.matching import FREE, Refusal, allocate, why_never
from tests.core.builders import a_gpu, a_worker

LAB = Team(
    id="tm_lab",
    name="Lab",
    created_at=1.0,
    members={
        "u_ann": Membership(TeamRole.MEMBER, 5.0),
        "u_lea": Membership(TeamRole.LEAD, 1.0),
        "u_vic": Membership(TeamRole.VIEWER, 1.0),
    },
    rules=TeamRules(max_priority=10, lead_max_priority=100),
)
ART = Team(id="tm_art", name="Art", created_at=2.0, members={"u_ann": Membership(TeamRole.LEAD, 3.0)})
TEAMS = {team.id: team for team in (LAB, ART)}


@pytest.mark.parametrize(
    ("visibility", "seen_by"),
    [
        (Visibility.PRIVATE, {"owner", "admin"}),
        (Visibility.TEAM, {"owner", "admin", "teammate"}),
        (Visibility.EVERYBODY, {"owner", "admin", "teammate", "stranger"}),
    ],
)
def test_who_sees_what(visibility: Visibility, seen_by: set[str]) -> None:
    thing = Belonging("u_ann", "tm_lab", visibility)
    scopes = {
        "owner": VisibilityScope(ids=frozenset({"t_1", "u_ann"})),
        "admin": VisibilityScope(above=True),
        "teammate": VisibilityScope(ids=frozenset({"u_vic"}), teams=frozenset({"tm_lab"})),
        "stranger": VisibilityScope(ids=frozenset({"u_fay"}), teams=frozenset({"tm_art"})),
    }
    assert {name for name, scope in scopes.items() if may_see(scope, thing)} == seen_by


def test_what_is_for_a_team_without_one_is_for_nobody_else() -> None:
    everybody_without_a_team = VisibilityScope(ids=frozenset({"u_fay"}), teams=frozenset({""}))
    assert not may_see(everybody_without_a_team, Belonging("u_ann", "", Visibility.TEAM))
    assert visibility_of(Visibility.TEAM, None, Visibility.EVERYBODY) is Visibility.PRIVATE
    assert visibility_of(None, None, Visibility.EVERYBODY) is Visibility.EVERYBODY
    assert (
        visibility_of(None, replace(LAB, visibility=Visibility.TEAM), Visibility.PRIVATE) is Visibility.TEAM
    )


def test_a_job_is_for_the_team_named_or_the_one_joined_first() -> None:
    assert team_for(TEAMS, None, ["t_1", "u_ann"], above=False) is ART
    assert team_for(TEAMS, "lab", ["u_ann"], above=False) is LAB
    assert team_for(TEAMS, "", ["u_ann"], above=False) is None
    assert team_for(TEAMS, None, ["u_vic"], above=False) is None
    assert team_for(TEAMS, "Art", ["u_admin"], above=True) is ART
    with pytest.raises(NotInTeam):
        team_for(TEAMS, "Lab", ["u_vic"], above=False)
    with pytest.raises(NotFound, match="no team 'Lab'"):
        team_for(TEAMS, "Lab", ["u_fay"], above=False)


def test_priority_has_a_ceiling_by_role() -> None:
    assert [priority_ceiling(LAB, [one]) for one in ("u_ann", "u_lea", "u_vic", "u_fay")] == [10, 100, 0, 0]
    assert priority_ceiling(None, ["u_ann"]) == 0
    as_member = [priority_ceiling(LAB, [one], as_lead=False) for one in ("u_ann", "u_lea", "u_vic")]
    assert as_member == [10, 10, 0]


def test_a_team_uses_the_trainers_and_targets_of_its_rules() -> None:
    team = replace(LAB, rules=TeamRules(trainers=("simpletuner",), targets=("worker",)))
    check_use(team, trainer="simpletuner", target="worker")
    check_use(LAB, trainer="command", target="local")
    with pytest.raises(NotForTeam, match="may not use the trainer 'command'; it may use simpletuner"):
        check_use(team, trainer="command", target="worker")
    with pytest.raises(NotForTeam, match="may not use the target 'local'"):
        check_use(team, trainer="simpletuner", target="local")


def test_a_team_uses_the_workers_and_gpus_of_its_rules() -> None:
    allowlist = allowlist_of(replace(LAB, rules=TeamRules(workers=("Room=a*",), gpus=("*a100*",))))
    mixed = (a_gpu(0), replace(a_gpu(1), name="NVIDIA H100"))
    ours = a_worker(gpus=mixed, labels={"room": "A7"})
    assert why_never(ours, Requirements(), allowlist) is None
    assert allocate(ours, FREE, Requirements(), allowlist) == (mixed[0],)
    assert why_never(ours, Requirements(gpus=2), allowlist) is Refusal.NOT_FOR_TEAM
    assert why_never(ours, Requirements(gpus=2)) is None
    assert (
        why_never(a_worker(gpus=mixed, labels={"room": "B"}), Requirements(), allowlist)
        is Refusal.NOT_FOR_TEAM
    )
    assert why_never(a_worker(gpus=0), Requirements(gpus=0), allowlist) is Refusal.NOT_FOR_TEAM
    assert allowlist_of(LAB) is None


@pytest.mark.parametrize(
    "rules",
    [
        TeamRules(workers=("no label",)),
        TeamRules(gpus=("",)),
        TeamRules(max_priority=1001),
        TeamRules(trainers=tuple("t" * 65)),
    ],
)
def test_rules_that_say_nothing_are_refused(rules: TeamRules) -> None:
    with pytest.raises(Invalid):
        checked_rules(rules)


class Crowd(dict[str, Membership]):
    """Members of whom each can be asked for, but not all."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("somebody goes through all members")

    items = keys = values = __iter__  # type: ignore[assignment]


def test_the_team_of_one_person_is_found_without_a_look_at_all_others() -> None:
    crowds = {team.id: replace(team, members=Crowd(team.members)) for team in TEAMS.values()}
    assert [team_for(crowds, None, ids, above=False) for ids in (["t_1", "u_ann"], ["u_lea"], ["u_vic"])] == [
        crowds["tm_art"],
        crowds["tm_lab"],
        None,
    ]


def test_an_id_comes_before_a_name_that_looks_like_one() -> None:
    odd = Team(id="tm_odd", name="tm_lab", created_at=0.0)
    teams = {team.id: team for team in (odd, LAB, replace(ART, name="tm_none"))}
    assert named_team(teams, "tm_lab", (), above=True) is LAB
    assert named_team(teams, "tm_none", (), above=True).id == ART.id
    with pytest.raises(NotFound):
        named_team(teams, "tm_odd", ["u_ann"], above=False)
