"""Finds the dataset that a person means: by its id, a beginning of it, or its name."""

from simpletuner_fleet.cli.frame.errors import Exit, fail
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.core.checkpoint import SHA256
from simpletuner_fleet.core.datasets import PREFIX
from simpletuner_fleet.languages import _

SHORTEST_BEGINNING = 6


def find_dataset(api: Api, called: str) -> str:
    """Returns the whole id. A beginning is taken where it is long enough and fits one dataset alone."""
    bare = called.removeprefix(PREFIX)
    if SHA256.fullmatch(bare):
        return PREFIX + bare
    known = api.items("/api/data", "datasets", lookup=True)
    begins = PREFIX + bare
    matches = [one for one in known if one["name"] == called] or [
        one for one in known if len(bare) >= SHORTEST_BEGINNING and one["id"].startswith(begins)
    ]
    if len(matches) == 1:
        return str(matches[0]["id"])
    if matches:
        raise fail(
            _("several datasets are called '%(called)s'", called=called),
            ", ".join(str(one["id"]) for one in matches[:5]),
            _("use the id"),
            "ambiguous",
            Exit.USAGE,
        )
    raise fail(
        _("there is no dataset '%(called)s'", called=called),
        _("no dataset has this id, a beginning like it, or this name"),
        "simpletuner data list",
        "not_found",
        Exit.NOT_FOUND,
    )
