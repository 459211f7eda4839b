"""Provides the fleet to lists and figures as a copy of what is in memory, renewed only after a change.

Reads run in a thread of their own, while the roster changes in the event loop: nobody reads it there while it changes.
Reading two thousand workers from the database for every look would cost a hundred times as much as the look itself.
"""

from typing import Any

from msgspec import Struct, field

from simpletuner_fleet.core.people.quotas import QuotaBook
from simpletuner_fleet.core.placement.explain import Survey
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.placement.verdicts import KnownVerdicts

MOST_SURVEYS = 1_000
"""More than one look asks for, of which each tells some workers apart; a quiet fleet is asked about new lines for days."""


class FleetStanding(Struct, kw_only=True):
    version: int
    book: QuotaBook | None
    roster: Roster | None = None
    """None: what is in memory is not known to be whole, and whoever looks reads the rows."""
    figures: dict[str, Any] = field(default_factory=dict)
    """What was counted over all workers, by its name: counted once as long as nothing changes."""
    surveys: dict[str, Survey] = field(default_factory=dict)
    """What the fleet says to each line of jobs, as it was asked for; true as long as nothing has changed.

    Whoever adds one forgets the oldest beyond `MOST_SURVEYS`.
    """
    verdicts: KnownVerdicts = field(default_factory=KnownVerdicts)
    """What each worker said to a line, kept also where others have changed since."""


UNKNOWN_STANDING = FleetStanding(version=-1, book=None)
"""Before anything is known: whoever looks reads the rows."""
