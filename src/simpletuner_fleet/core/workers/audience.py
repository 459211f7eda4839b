"""Restricts whose jobs a worker takes."""

from collections.abc import Collection

from msgspec import Struct


class Audience(Struct, frozen=True, kw_only=True):
    """Lists the teams and people whose jobs a worker takes.

    It takes jobs of one of these teams, and jobs of one of these people, whichever team they are of.
    """

    teams: tuple[str, ...] = ()
    """Their ids."""
    people: tuple[str, ...] = ()
    """Their ids; that of an API token which acts for nobody, too."""

    def admits(self, owner: str, team: str) -> bool:
        """Tells whether a job of this owner and team may run there."""
        return owner in self.people or (bool(team) and team in self.teams)

    def includes(self, ids: Collection[str], teams: Collection[str]) -> bool:
        """Tells whether somebody with one of these ids, in these teams, is included."""
        return any(one in ids for one in self.people) or any(one in teams for one in self.teams)
