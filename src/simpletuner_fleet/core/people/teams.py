"""Defines teams: who belongs to one in which role, and what it may use.

It holds rules only; the store keeps a team as one document.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name, Whole
from simpletuner_fleet.core.errors import Invalid, NotForTeam, NotFound, NotInTeam
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.policy import MAX_PRIORITY

TEAM_PREFIX = "team:"
"""Begins the name of the setting that holds a team."""
MAX_TEAM_NAME_CHARS = 64
MAX_MEMBERS = 20_000
"""As many as a group of a provider may have, whose people would not be let in where its team is full."""
MAX_PATTERNS = 64
MAX_PATTERN_CHARS = 255
MAX_WEIGHT = 1_000_000.0
LEAD_PERMISSIONS = ("queue.approve", "queue.priority")
"""What a lead may do beyond their own role, and for jobs of the team alone."""


class TeamRole(StrEnum):
    VIEWER = "viewer"
    """Sees what is the team's."""
    MEMBER = "member"
    """Submits jobs for the team, too."""
    LEAD = "lead"
    """Steers and approves the team's jobs, and says who belongs to it."""


class Membership(Struct, frozen=True):
    role: TeamRole
    since: float


class TeamRules(Struct, frozen=True, kw_only=True):
    """Limits what jobs of the team may use; an empty list allows everything."""

    workers: tuple[Name, ...] = ()
    """Labels as KEY=GLOB: a worker that carries one of them may be used."""
    gpus: tuple[Name, ...] = ()
    """Globs of GPU names."""
    trainers: tuple[Name, ...] = ()
    targets: tuple[Name, ...] = ()
    max_priority: Whole = 0
    """How high a member may set a job's priority."""
    lead_max_priority: Whole = MAX_PRIORITY
    """The same for a lead."""


class Team(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    created_at: float
    members: dict[str, Membership] = {}
    """By the id of the user."""
    rules: TeamRules = TeamRules()
    weight: float = 1.0
    """Its share of the fleet, as against those of other teams."""
    visibility: Visibility | None = None
    """Of what its members make, where they say nothing; None: as the server's setting says."""


def checked_team_name(name: str) -> str:
    if not 1 <= len(name) <= MAX_TEAM_NAME_CHARS or not name.isprintable() or name != name.strip():
        raise Invalid(
            f"A team's name has 1 to {MAX_TEAM_NAME_CHARS} printable characters and no blank at its ends.",
            path="$.name",
        )
    return name


def checked_weight(weight: float) -> float:
    if not 0 < weight <= MAX_WEIGHT:
        raise Invalid(f"A weight is more than 0 and at most {MAX_WEIGHT:g}.", path="$.weight")
    return float(weight)


def checked_rules(rules: TeamRules) -> TeamRules:
    for kind in ("workers", "gpus", "trainers", "targets"):
        patterns: tuple[str, ...] = getattr(rules, kind)
        if len(patterns) > MAX_PATTERNS:
            raise Invalid(f"There may be at most {MAX_PATTERNS} patterns of a kind.", path=f"$.rules.{kind}")
        if any(not 1 <= len(one) <= MAX_PATTERN_CHARS or not one.isprintable() for one in patterns):
            raise Invalid(
                f"A pattern has 1 to {MAX_PATTERN_CHARS} printable characters.", path=f"$.rules.{kind}"
            )
    if any(not all(one.partition("=")) for one in rules.workers):
        raise Invalid(
            "A rule about workers is a label: KEY=VALUE, where VALUE may be a glob.", path="$.rules.workers"
        )
    for field in ("max_priority", "lead_max_priority"):
        if not -MAX_PRIORITY <= getattr(rules, field) <= MAX_PRIORITY:
            raise Invalid(
                f"A priority is between -{MAX_PRIORITY} and {MAX_PRIORITY}.", path=f"$.rules.{field}"
            )
    return rules


def role_in(team: Team, ids: Collection[str]) -> TeamRole | None:
    """Returns the role of whoever has one of these ids."""
    return next((team.members[one].role for one in ids if one in team.members), None)


def submits_for(team: Team, ids: Collection[str]) -> bool:
    return role_in(team, ids) in (TeamRole.MEMBER, TeamRole.LEAD)


def named_team(teams: Mapping[str, Team], called: str, ids: Collection[str], *, above: bool) -> Team:
    """Returns the team of this id, or else of this name, among those that the caller may know of."""
    known = {team.id: team for team in teams.values() if above or role_in(team, ids) is not None}
    if called in known:
        return known[called]
    wanted = called.casefold()
    for team in known.values():
        if team.name.casefold() == wanted:
            return team
    raise NotFound(
        f"There is no team '{called[:100]}'.", next_step="See yours with 'simpletuner teams list'."
    )


def team_for(
    teams: Mapping[str, Team], called: str | None, ids: Collection[str], *, above: bool
) -> Team | None:
    """Returns the team that a job, a config or a dataset will be of: the one named, else the one joined first."""
    if called == "":
        return None
    if called is not None:
        team = named_team(teams, called, ids, above=above)
        if not above and not submits_for(team, ids):
            raise NotInTeam
        return team
    own = [
        (membership.since, team.id, team)
        for team in teams.values()
        for one in ids
        if (membership := team.members.get(one)) and membership.role is not TeamRole.VIEWER
    ]
    return min(own, key=lambda joined: joined[:2])[2] if own else None


def visibility_of(asked: Visibility | None, team: Team | None, default: Visibility) -> Visibility:
    """Returns the visibility of a new thing; without a team, what would be visible to the team stays private."""
    chosen = asked or (team.visibility if team else None) or default
    return Visibility.PRIVATE if chosen is Visibility.TEAM and team is None else chosen


def check_use(team: Team, *, trainer: str, target: str) -> None:
    rules = team.rules
    if rules.trainers and trainer not in rules.trainers:
        raise NotForTeam(
            f"The team '{team.name}' may not use the trainer '{trainer}'; it may use {', '.join(rules.trainers)}."
        )
    if rules.targets and target not in rules.targets:
        raise NotForTeam(
            f"The team '{team.name}' may not use the target '{target}'; it may use {', '.join(rules.targets)}."
        )


def priority_ceiling(team: Team | None, ids: Collection[str], *, as_lead: bool = True) -> int:
    """Returns the highest priority that somebody may set without permission to move the jobs of others.

    Without `as_lead` a lead may do what a member may: it is their token that asks, and it was made for less.
    """
    role = role_in(team, ids) if team else None
    if team is None or role not in (TeamRole.MEMBER, TeamRole.LEAD):
        return 0
    return team.rules.lead_max_priority if role is TeamRole.LEAD and as_lead else team.rules.max_priority


def allowlist_of(team: Team) -> TeamAllowlist | None:
    """Returns what its rules let it use; None stands for everything."""
    rules = team.rules
    if not rules.workers and not rules.gpus:
        return None
    labels = (one.casefold().partition("=") for one in rules.workers)
    return TeamAllowlist(
        tuple((key.strip(), pattern.strip()) for key, _, pattern in labels),
        tuple(pattern.casefold() for pattern in rules.gpus),
    )


def allowlists_of(teams: Iterable[Team]) -> dict[str, TeamAllowlist]:
    allowlists = ((team.id, allowlist_of(team)) for team in teams)
    return {team_id: allowlist for team_id, allowlist in allowlists if allowlist is not None}
