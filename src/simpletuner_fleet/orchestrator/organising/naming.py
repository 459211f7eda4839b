"""Finds people and teams by the name or id that an administrator gives."""

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import View


def known_person(view: View, called: str, path: str) -> str:
    """Returns the id of a user, or of an API token. `path` is the field that holds the name."""
    user = view.user(called) or view.user_by_name(called)
    if user is None and view.api_token(called) is None:
        raise Invalid(f"There is no user '{called[:100]}'.", path=path)
    return user.id if user else called


def known_team(transaction: Transaction, called: str, path: str) -> str:
    """Returns the id of a team."""
    for team in transaction.organisation.teams.values():
        if called in (team.id, team.name):
            return team.id
    raise Invalid(f"There is no team '{called[:100]}'.", path=path)
