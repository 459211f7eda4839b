"""Decides who may see what, by one rule for every list, page, stream and error.

A thing belongs to a person, and perhaps to a team. Its owner sees it, and so does whoever has rights over everybody's
things; others see it as far as its visibility says. Whoever may not see a thing is told that there is none.
"""

from enum import StrEnum

from msgspec import Struct

from simpletuner_fleet.core.workers.audience import Audience


class Visibility(StrEnum):
    PRIVATE = "private"
    TEAM = "team"
    EVERYBODY = "everybody"


class Belonging(Struct, frozen=True):
    """Says to whom a thing belongs, and who else may see it."""

    owner: str
    team: str = ""
    """The id of its team; empty where it belongs to none."""
    visibility: Visibility = Visibility.EVERYBODY


class VisibilityScope(Struct, frozen=True, kw_only=True):
    """Identifies somebody who looks at things, with what decides which of them they may see."""

    ids: frozenset[str] = frozenset()
    """The ids under which things are theirs: a token's own, and that of the user it acts for."""
    teams: frozenset[str] = frozenset()
    """The ids of the teams they belong to, in whichever role."""
    above: bool = False
    """Sees everything, as an administrator does."""
    looks_after_machines: bool = False
    """Sees every pool, also those kept for others."""


FULL_VISIBILITY = VisibilityScope(above=True)
"""For the server itself, which looks at everything."""


def may_see(scope: VisibilityScope, thing: Belonging) -> bool:
    if scope.above or thing.visibility is Visibility.EVERYBODY or thing.owner in scope.ids:
        return True
    return thing.visibility is Visibility.TEAM and bool(thing.team) and thing.team in scope.teams


def knows_of(scope: VisibilityScope, audience: Audience | None) -> bool:
    """Tells whether somebody may know of a pool and its machines: those who use it or maintain machines may."""
    if audience is None or scope.above or scope.looks_after_machines:
        return True
    return audience.includes(scope.ids, scope.teams)
