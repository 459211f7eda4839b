"""Finds the first admin's token: from its setting, otherwise the stored one, otherwise a new one."""

import os
from pathlib import Path

from simpletuner_fleet.cli.frame.errors import usage
from simpletuner_fleet.cli.frame.private_files import read_private, write_private
from simpletuner_fleet.core.errors import InvalidToken
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.http.access.auth import refuse_misshapen_api_token
from simpletuner_fleet.languages import _


def stored_admin_token(data_dir: Path, from_setting: str | None) -> tuple[str, str]:
    """Stores the token and returns it, with the place where a person finds it."""
    path = data_dir / "admin_token"
    token = from_setting or read_private(path)
    if token is None:
        token = RandomIds(os.urandom(tokens.SECRET_BYTES)).token(tokens.API)
    check_admin_token(token, str(path))
    write_private(path, token)
    return token, _("%(path)s (from SIMPLETUNER_ADMIN_TOKEN)", path=path) if from_setting else str(path)


def check_admin_token(token: str, where: str) -> None:
    try:
        refuse_misshapen_api_token(token)
    except InvalidToken as error:
        raise usage(
            _("the admin token in %(where)s is not usable", where=where),
            error.detail,
            _("use a token of the form st_…, or any string of 32 or more characters without spaces"),
        ) from None
