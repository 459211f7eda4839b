"""Names of whoever acts or is acted on, by the ids that records keep."""

from simpletuner_fleet.ports import View


def people_names(view: View) -> dict[str, str]:
    """Names users before tokens: of two with one name, a person is meant."""
    names = {user.id: user.name for user in view.users()}
    return names | {token.id: token.name for token in view.api_tokens()}


def all_names(view: View) -> dict[str, str]:
    return people_names(view) | {worker.id: worker.name for worker in view.workers()}


def id_of(text: str, names: dict[str, str]) -> str | None:
    """People type names; records know ids. What is no name is taken as an id; nothing stays nothing."""
    typed = text.strip()
    return next((one for one, name in names.items() if name.casefold() == typed.casefold()), typed) or None
