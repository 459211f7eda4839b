"""Finds the names of people, tokens and workers by the ids that records keep."""

from simpletuner_fleet.ports import View


def people_names(view: View) -> dict[str, str]:
    """Returns names by id, users before tokens: where two have the same name, the user is meant."""
    names = {user.id: user.name for user in view.users()}
    return names | {token.id: token.name for token in view.api_tokens()}


def all_names(view: View) -> dict[str, str]:
    return people_names(view) | {worker.id: worker.name for worker in view.workers()}


def id_of(text: str, names: dict[str, str]) -> str | None:
    """Returns the id for a name, since records keep ids. Other text is taken as an id, and empty text gives None."""
    typed = text.strip()
    return next((one for one, name in names.items() if name.casefold() == typed.casefold()), typed) or None
