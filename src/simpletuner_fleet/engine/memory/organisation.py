"""Reads teams, quotas and shares from the store, where each is one document, and holds them all in memory."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.money.prices import NO_PRICES, PriceList, PriceRule, in_order
from simpletuner_fleet.core.people.accounts import User
from simpletuner_fleet.core.people.approvals import ApprovalRule, Approvers
from simpletuner_fleet.core.people.own_roles import ROLE_PREFIX, OwnRole
from simpletuner_fleet.core.people.ownership import Writer
from simpletuner_fleet.core.people.quotas import Quota
from simpletuner_fleet.core.people.sign_in.stored import PROVIDER_PREFIX, StoredProvider
from simpletuner_fleet.core.people.teams import (
    TEAM_PREFIX,
    Team,
    TeamRole,
    allowlists_of,
    role_in,
    team_for,
    visibility_of,
)
from simpletuner_fleet.core.people.visibility import Belonging, Visibility, VisibilityScope
from simpletuner_fleet.core.placement.shares import FairShare
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.placement.unreadable import ALL_READABLE, UnreadableSettings
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.engine.memory.layered import NOTHING, Layered
from simpletuner_fleet.engine.memory.setting_documents import (
    FAIR_SHARE_SETTING,
    LIMITS_SETTING,
    PRICE_PREFIX,
    QUOTA_PREFIX,
    RULE_PREFIX,
    currency_in,
    document,
    documents,
)
from simpletuner_fleet.ports import SetAsideRow, View

MAY_FORBID_STARTS = (LIMITS_SETTING, QUOTA_PREFIX, PRICE_PREFIX)


class NamesById(Mapping[str, str]):
    """Maps the ids of users and teams to their names as one, without a copy of either."""

    __slots__ = ("_teams", "_users")

    def __init__(self, users: Mapping[str, str], teams: Mapping[str, Team]) -> None:
        self._users, self._teams = users, teams

    def __getitem__(self, key: str) -> str:
        return self._teams[key].name if key in self._teams else self._users[key]

    def __iter__(self) -> Iterator[str]:
        yield from self._users
        yield from self._teams

    def __len__(self) -> int:
        return len(self._users) + len(self._teams)


class Organisation(Struct, frozen=True, kw_only=True):
    """Holds the teams, roles, quotas, approval rules, shares, prices and providers of the fleet.

    It is replaced as a whole and never changed.
    """

    teams: dict[str, Team] = {}
    """By id."""
    roles: Layered = NOTHING
    """Of every user, by id."""
    own_roles: dict[str, OwnRole] = {}
    """Those beside admin, member and viewer, by name."""
    user_names: Layered = NOTHING
    """Of every user, by id."""
    quotas: tuple[Quota, ...] = ()
    rules: tuple[ApprovalRule, ...] = ()
    """Which jobs need an approval."""
    fair_share: FairShare = FairShare()
    prices: PriceList = NO_PRICES
    providers: tuple[StoredProvider, ...] = ()
    """Those that were added beside the server's file, switched on or off."""
    unreadable: tuple[SetAsideRow, ...] = ()
    """The settings that cannot be read and are left out above. What they may have forbidden is forbidden meanwhile."""

    def with_user(self, user: User) -> "Organisation":
        """Returns the organisation with one user updated, without reading all others again."""
        return replace(
            self,
            roles=self.roles.with_one(user.id, user.role),
            user_names=self.user_names.with_one(user.id, user.name),
        )

    @property
    def names(self) -> Mapping[str, str]:
        """Returns the name of every user and team, by id."""
        return NamesById(self.user_names, self.teams)

    @property
    def rules_in_force(self) -> tuple[ApprovalRule, ...]:
        """Returns the approval rules; for one that cannot be read every job needs an administrator's approval."""
        lost = self.unreadable_ids(RULE_PREFIX)
        return self.rules + tuple(ApprovalRule(id=one, name=one, by=Approvers.ADMINS) for one in lost)

    @property
    def allowlists(self) -> dict[str, TeamAllowlist]:
        """Returns what teams may use, where that is limited."""
        return allowlists_of(self.teams.values())

    @property
    def unreadable_for_starts(self) -> UnreadableSettings:
        """Returns the settings that cannot be read and may forbid a start: also prices, by which quotas count."""
        if not self.unreadable:
            return ALL_READABLE
        ids = [one.id for one in self.unreadable]
        return UnreadableSettings(
            of_all=tuple(one for one in ids if one.startswith(MAY_FORBID_STARTS)),
            of_teams={one.removeprefix(TEAM_PREFIX): one for one in ids if one.startswith(TEAM_PREFIX)},
        )

    def is_unreadable(self, key: str) -> bool:
        """Tells whether the setting of this name is there and cannot be read."""
        return any(one.id == key for one in self.unreadable)

    def unreadable_ids(self, prefix: str) -> list[str]:
        """Returns the ids of what is there and cannot be read, of quotas, teams, rules or prices."""
        return [one.id.removeprefix(prefix) for one in self.unreadable if one.id.startswith(prefix)]

    def provider(self, provider_id: str) -> StoredProvider | None:
        return next((one for one in self.providers if one.provider.id == provider_id), None)

    def visibility_scope(
        self, ids: Iterable[str], *, above: bool, looks_after_machines: bool = False
    ) -> VisibilityScope:
        whose = frozenset(one for one in ids if one)
        teams = frozenset(
            team.id for team in self.teams.values() if not team.members.keys().isdisjoint(whose)
        )
        return VisibilityScope(ids=whose, teams=teams, above=above, looks_after_machines=looks_after_machines)

    def leads_any(self, user_id: str) -> bool:
        return bool(self.led_by(frozenset({user_id})))

    def led_by(self, ids: frozenset[str]) -> frozenset[str]:
        """Returns the ids of the teams that one of these leads."""
        return frozenset(team.id for team in self.teams.values() if role_in(team, ids) is TeamRole.LEAD)

    def belonging(
        self, writer: Writer, team: str | None, visibility: Visibility | None, default: Visibility
    ) -> Belonging:
        """Returns whose a new thing is, and who sees it."""
        ids = [one for one in (writer.actor.id, writer.owns_as) if one]
        its_team = team_for(self.teams, team, ids, above=writer.above) if self.teams or team else None
        seen = visibility_of(visibility, its_team, default)
        return Belonging(writer.owns_as, its_team.id if its_team else "", seen)


NOBODY_ORGANISED = Organisation()


def read_organisation(view: View, known: Organisation | None = None) -> Organisation:
    """Reads it from the store.

    Users are taken over from the one that is known, since each change of a user is noted in it when it happens
    (`with_user`), and there may be many of them.
    """
    unreadable: list[SetAsideRow] = []
    users = view.users() if known is None else []
    document(view, LIMITS_SETTING, Limits, unreadable)  # they are looked up elsewhere, and told of here
    return Organisation(
        teams={team.id: team for team in documents(view, TEAM_PREFIX, Team, unreadable)},
        roles=known.roles if known else Layered({user.id: user.role for user in users}),
        own_roles={role.name: role for role in documents(view, ROLE_PREFIX, OwnRole, unreadable)},
        user_names=known.user_names if known else Layered({user.id: user.name for user in users}),
        rules=tuple(documents(view, RULE_PREFIX, ApprovalRule, unreadable)),
        quotas=tuple(documents(view, QUOTA_PREFIX, Quota, unreadable)),
        fair_share=document(view, FAIR_SHARE_SETTING, FairShare, unreadable) or FairShare(),
        prices=PriceList(
            currency=currency_in(view, unreadable),
            rules=in_order(documents(view, PRICE_PREFIX, PriceRule, unreadable)),
        ),
        providers=tuple(documents(view, PROVIDER_PREFIX, StoredProvider, unreadable)),
        unreadable=tuple(unreadable),
    )
