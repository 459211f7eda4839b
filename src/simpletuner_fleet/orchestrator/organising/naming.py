"""Finds people and teams by the id or else the name that an administrator gives: a name may look like an id."""

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import View


def known_person(view: View, called: str, path: str) -> str:
    """Returns the id of a user, or of an API token. `path` is the field that holds the name."""
    if view.user(called) or view.api_token(called):
        return called
    user = view.user_by_name(called)
    if user is None:
        raise Invalid(f"There is no user '{called[:100]}'.", path=path)
    return user.id


def known_team(transaction: Transaction, called: str, path: str) -> str:
    """Returns the id of a team."""
    teams = transaction.organisation.teams
    if called in teams:
        return called
    for team in teams.values():
        if team.name == called:
            return team.id
    raise Invalid(f"There is no team '{called[:100]}'.", path=path)
