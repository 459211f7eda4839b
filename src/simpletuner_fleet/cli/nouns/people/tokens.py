"""Runs the `simpletuner tokens` commands: lists, creates and revokes API tokens."""

import argparse

from simpletuner_fleet.cli.frame.errors import ExitCode, fail
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.cli.remote.lookup import meant
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _, ngettext

TOKENS = "/api/admin/tokens"
LIST = (
    field("id"),
    field("name"),
    Column("MADE", lambda token: ago(token.get("created_at"))),
    Column("EXPIRES", lambda token: token.get("expires_at")),
    Column("USED", lambda token: ago(token.get("last_used_at"))),
    Column("REVOKED", lambda token: ago(token.get("revoked_at"))),
    field("permissions", shrinks=True, goes=1),
)
MADE = (field("id"), field("name"), field("token"), field("permissions"), field("expires_at", "EXPIRES"))


def list_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).items("tokens", api.items(TOKENS, "tokens"), LIST)
    return ExitCode.OK


def create(args: argparse.Namespace) -> int:
    out = Output(args)
    body = {"name": args.name, "permissions": args.permission}
    if args.expires:
        body["expires_in_s"] = args.expires
    with connected(args) as api:
        made = dict(api.post(TOKENS, body))
        out.item(made, MADE)
        if out.leaves_out("token"):
            out.say_once(_("token, shown this once: %(token)s", token=made["token"]))
        else:
            out.say(_("The token is shown only once."))
    return ExitCode.OK


def revoke(args: argparse.Namespace) -> int:
    with connected(args) as api:
        matches = [
            token["id"]
            for token in meant(api.items(TOKENS, "tokens", lookup=True), args.id)
            if token["id"] == args.id or not token.get("revoked_at")
        ]
        if len(matches) != 1:
            raise fail(
                _("no single token is named '%(id)s'", id=args.id),
                ngettext("%(n)s match", "%(n)s matches", len(matches)),
                _("simpletuner tokens list, then revoke by id"),
                "not_found",
                ExitCode.NOT_FOUND,
            )
        api.delete(f"{TOKENS}/{segment(matches[0])}")
        Output(args).say(_("%(id)s revoked", id=args.id))
    return ExitCode.OK
