"""Finds the dataset that the user means: by its id, else by its name, else by the start of its id."""

from typing import Any

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail
from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.core.configs.datasets import PREFIX
from simpletuner_fleet.core.errors import Forbidden
from simpletuner_fleet.core.training.checkpoint import SHA256
from simpletuner_fleet.languages import _

SHORTEST_BEGINNING = 6


def find_dataset(api: Api, name_or_id: str) -> str:
    """Returns the whole id. The start of an id is enough if it is long enough and fits one dataset alone."""
    bare = name_or_id.removeprefix(PREFIX)
    datasets = _listed(api, is_whole=SHA256.fullmatch(bare) is not None)
    begins = PREFIX + bare
    matches = (
        [one for one in datasets if one["id"] == begins]
        or [one for one in datasets if one["name"] == name_or_id]
        or [one for one in datasets if len(bare) >= SHORTEST_BEGINNING and one["id"].startswith(begins)]
    )
    if len(matches) == 1:
        return str(matches[0]["id"])
    if not matches and SHA256.fullmatch(bare):
        return begins
    if matches:
        raise fail(
            _("several datasets are named '%(called)s'", called=name_or_id),
            ", ".join(str(one["id"]) for one in matches[:5]),
            _("use the id"),
            "ambiguous",
            ExitCode.USAGE,
        )
    raise fail(
        _("there is no dataset '%(called)s'", called=name_or_id),
        _("no dataset has this id, id prefix or name"),
        "simpletuner data list",
        "not_found",
        ExitCode.NOT_FOUND,
    )


def _listed(api: Api, *, is_whole: bool) -> list[dict[str, Any]]:
    """Returns all datasets; none for a token that may not list them, where a whole id says which is meant."""
    try:
        return api.items("/api/data", "datasets", lookup=True)
    except CliError as error:
        if not is_whole or error.trouble.code != Forbidden.code:
            raise
        return []
