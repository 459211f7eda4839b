"""Tells of whole groups of jobs that none of them may start for now, so that nobody looks at each."""

from collections.abc import Mapping

from msgspec import Struct, field

from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.people.quotas import QuotaBook
from simpletuner_fleet.core.placement.unreadable import UnreadableSettings
from simpletuner_fleet.core.policy import Limits

OwnerRules = tuple[int | None, QuotaBook | None, float, int]
"""By what owners are kept waiting: the limit on each, the quotas, their day, and how often the clock was set back."""


class StartLimits(Struct, frozen=True, kw_only=True):
    """Holds what may keep jobs from starting, whichever workers are free.

    It says of a group that it is kept only where `limit_of` would say so of each job in it. Of a quota of starts it
    says nothing: that one frees itself as time passes. Once an attempt has begun or ended, another one is to be asked.
    """

    limits: Limits
    book: QuotaBook | None
    unreadable: UnreadableSettings
    running: int
    by_owner: Mapping[str, int]
    by_team: Mapping[str, int]
    _kept_teams: dict[tuple[str, int], bool] = field(default_factory=dict)
    """What was said of a team, and below of an owner, with so many GPUs: many classes ask the same."""
    _kept_owners: dict[tuple[str, int], bool] = field(default_factory=dict)

    @property
    def owner_rules(self) -> OwnerRules:
        """Returns what must be the same for owners who were kept waiting to be so still, unless theirs has ended."""
        book, most = self.book, self.limits.user_running
        return (most, book, book.usage.day.begins, book.turned_back) if book else (most, None, 0.0, 0)

    @property
    def concern_teams(self) -> bool:
        """Tells whether `keep_team` may say so of anybody."""
        return self.limits.team_running is not None or self.book is not None or bool(self.unreadable.of_teams)

    def keep_everybody(self) -> bool:
        most = self.limits.global_running
        return (
            bool(self.unreadable.of_all)
            or (most is not None and self.running >= most)
            or (self.book is not None and self.book.keeps_everybody_waiting(gpus=0))
        )

    def keep_team(self, requires: Requirements) -> bool:
        """Tells whether all jobs of this team that ask for as many GPUs wait, whoever is their owner."""
        asked = requires.team, requires.gpus
        kept = self._kept_teams.get(asked)
        if kept is None:
            kept = self._kept_teams[asked] = self._keeps_team(requires)
        return kept

    def _keeps_team(self, requires: Requirements) -> bool:
        team, most, book = requires.team, self.limits.team_running, self.book
        if team and (
            team in self.unreadable.of_teams or (most is not None and self.by_team.get(team, 0) >= most)
        ):
            return True
        return book is not None and (
            book.keeps_everybody_waiting(requires.gpus) or book.keeps_team_waiting(team, requires.gpus)
        )

    def keep_owner(self, requires: Requirements) -> bool:
        """Tells whether all jobs of this owner that ask for as many GPUs wait.

        Once so, it stays so until an attempt of theirs ends, their role or `owner_rules` change.
        """
        asked = requires.owner, requires.gpus
        kept = self._kept_owners.get(asked)
        if kept is None:
            kept = self._kept_owners[asked] = self._keeps_owner(requires)
        return kept

    def _keeps_owner(self, requires: Requirements) -> bool:
        owner, most, book = requires.owner, self.limits.user_running, self.book
        if most is not None and self.by_owner.get(owner, 0) >= most:
            return True
        return book is not None and book.keeps_person_waiting(owner, requires.gpus)
