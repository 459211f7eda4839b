"""Runs the `simpletuner users` commands: administers the people who log in."""

import argparse
from collections.abc import Iterator
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, fail
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.cli.remote.lookup import PAGE
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _

USERS = "/api/admin/users"
LIST = (
    field("id"),
    field("name"),
    field("role"),
    Column("MADE", lambda user: ago(user.get("created_at")), goes=1),
    Column("LAST LOGIN", lambda user: ago(user.get("last_login_at"))),
    Column("DISABLED", lambda user: ago(user.get("disabled_at"))),
)
MADE = (field("id"), field("name"), field("role"), field("link"), field("link_expires_at", "LINK EXPIRES"))
LINK = (field("link"), field("expires_at", "EXPIRES"))


def list_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).items("users", list(_everybody(api)), LIST)
    return ExitCode.OK


def create(args: argparse.Namespace) -> int:
    with connected(args) as api:
        answer = api.post(USERS, {"name": args.name, "role": args.role})
        _show(args, answer, MADE)
    return ExitCode.OK


def link(args: argparse.Namespace) -> int:
    with connected(args) as api:
        _show(args, api.post(f"{USERS}/link"), LINK)
    return ExitCode.OK


def reset_password(args: argparse.Namespace) -> int:
    with connected(args) as api:
        _show(args, api.post(f"{USERS}/{segment(_user_id(api, args.user))}/link"), LINK)
    return ExitCode.OK


def disable(args: argparse.Namespace) -> int:
    return _change(args, {"disabled": True})


def enable(args: argparse.Namespace) -> int:
    return _change(args, {"disabled": False})


def set_role(args: argparse.Namespace) -> int:
    return _change(args, {"role": args.role})


def _change(args: argparse.Namespace, body: dict[str, Any]) -> int:
    with connected(args) as api:
        Output(args).item(api.patch(f"{USERS}/{segment(_user_id(api, args.user))}", body), LIST)
    return ExitCode.OK


def _show(args: argparse.Namespace, answer: dict[str, Any], rows: tuple[Column, ...]) -> None:
    out = Output(args)
    out.item(answer, rows, id_field="link")
    if out.format != "name" and out.leaves_out("link"):
        out.say_once(_("link, shown this once: %(link)s", link=answer["link"]))
    out.say(_("The link works once and is shown only here."))


def _everybody(api: Api, *, lookup: bool = False) -> Iterator[dict[str, Any]]:
    """Yields all users, oldest first, read page by page as far as they are asked for."""
    cursor: str | None = None
    while True:
        page = api.page(USERS, "users", {"limit": PAGE, "cursor": cursor}, lookup=lookup)
        yield from page["users"]
        cursor = page.get("next")
        if not cursor or not page["users"]:
            return


def _user_id(api: Api, name_or_id: str) -> str:
    named: str | None = None
    for user in _everybody(api, lookup=True):
        if user["id"] == name_or_id:
            return name_or_id
        if user["name"].casefold() == name_or_id.casefold():
            named = str(user["id"])
        if named and not name_or_id.startswith("u_"):
            break
    if named:  # No id comes before it, which a name may look like.
        return named
    raise fail(
        _("there is no user '%(called)s'", called=name_or_id),
        _("no user has this id or name"),
        "simpletuner users list",
        "not_found",
        ExitCode.NOT_FOUND,
    )
