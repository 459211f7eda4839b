"""Runs the `simpletuner secrets` commands: lists, stores and deletes secrets."""

import argparse
import getpass
import os
import sys
from pathlib import Path

from simpletuner_fleet.cli.frame.errors import ExitCode, fail, usage
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.frame.quantities import ago
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.client.files.file_api import segment
from simpletuner_fleet.languages import _

SECRETS = "/api/secrets"
UNMASKED_BELOW = 6
EVERYBODY = "everybody"
LIST = (
    field("name"),
    field("version", right=True),
    Column("SET", lambda secret: ago(secret.get("created_at"))),
    field("created_by", "BY"),
)


def list_(args: argparse.Namespace) -> int:
    out = Output(args)
    with connected(args) as api:
        answer = api.page(SECRETS, "secrets")
        rows, unreadable = answer["secrets"], answer.get("unreadable", ())
        if not rows and not unreadable and not out.for_programs:
            out.hint(_("No secrets yet. Store one:  simpletuner secrets set NAME"))
        out.items("secrets", rows, LIST, id_field="name")
        for name in unreadable:
            out.say(
                _(
                    "%(name)s cannot be read, so no job gets it. Restore it from a backup, or delete it and store it anew.",
                    name=name,
                )
            )
    return ExitCode.OK


def set_(args: argparse.Namespace) -> int:
    """Stores a secret. Its value is never an argument, which everybody on the machine could see."""
    out = Output(args)
    value = typed_secret(
        args, _("Value of %(name)s: ", name=args.name), f"simpletuner secrets set {args.name}"
    )
    with connected(args) as api:
        body: dict[str, object] = {"value": value}
        if args.users:
            body["users"] = [] if args.users == [EVERYBODY] else args.users
        saved = api.put(f"{SECRETS}/{segment(args.name)}", body) or {}
        out.say(_("stored %(name)s, version %(version)s", name=args.name, version=saved.get("version")))
        if out.shows_result:
            out.item(saved, LIST, id_field="name")
        if len(value) < UNMASKED_BELOW:
            out.hint(
                _(
                    "It has fewer than %(unmasked_below)s characters, so it is not masked in logs.",
                    unmasked_below=UNMASKED_BELOW,
                )
            )
        out.hint(_('Use it in a config:  "secrets": {"VARIABLE": "%(name)s"}', name=args.name))
    return ExitCode.OK


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(f"{SECRETS}/{segment(args.name)}")
        Output(args).say(
            _("deleted %(name)s; running attempts keep the value they were given", name=args.name)
        )
    return ExitCode.OK


def typed_secret(args: argparse.Namespace, prompt: str, command: str) -> str:
    """Returns the secret from a file or standard input, without the newline that editors and echo add."""
    if getattr(args, "curl", False):
        return "VALUE"  # what is printed may be kept by the terminal
    if args.from_file:
        value = _read(Path(os.path.expanduser(args.from_file)))
    elif sys.stdin.isatty():
        value = getpass.getpass(prompt)
    else:
        value = sys.stdin.read()
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise usage(
            _("there is no value to store"),
            _("it is read from standard input, or from a file"),
            f"{command} --from-file FILE",
        )
    return value


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise fail(
            _("cannot read %(file)s", file=file),
            _("it is not text") if isinstance(error, UnicodeDecodeError) else error.strerror or str(error),
            _("verify the path"),
            "E_SECRET_FILE",
            ExitCode.NOT_FOUND if isinstance(error, FileNotFoundError) else ExitCode.FAILED,
        ) from None
