"""Runs `simpletuner login`, `logout` and `whoami`."""

import argparse
import getpass
import os
import sys
from pathlib import Path

from simpletuner_fleet.cli.frame.errors import ExitCode, fail, usage
from simpletuner_fleet.cli.frame.output import Output, field
from simpletuner_fleet.cli.frame.screen import has_browser
from simpletuner_fleet.cli.nouns.people.arriving.browser import token_by_browser
from simpletuner_fleet.cli.nouns.people.arriving.device import TERMINALS, terminal_name, token_by_device
from simpletuner_fleet.cli.nouns.people.arriving.saving import forget, keep
from simpletuner_fleet.cli.remote.api import Api, connected
from simpletuner_fleet.client import connection, credentials
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.credentials import Login
from simpletuner_fleet.core.people.tokens import API, WORKER
from simpletuner_fleet.languages import _
from simpletuner_fleet.settings import values

WHOAMI = "/api/whoami"
WHO = (field("id"), field("name"), field("permissions"))


def login(args: argparse.Namespace) -> int:
    """Logs in: the token is tried before it is saved."""
    out = Output(args)
    if args.server:
        try:
            args.url = values.url(args.server)
        except ValueError as error:
            raise usage(
                _("'%(server)s' is not a server", server=args.server),
                str(error),
                "simpletuner login https://HOST:8001",
            ) from None
    target = connection.find(args)
    in_person = _in_person(args, target)
    if getattr(args, "curl", False):
        return _print_call(args, in_person=in_person)
    token, person = _token_and_person(args, target, out) if in_person else (_token(args, target.url), "")
    where = target._replace(token=token, token_from="login")
    with Api(where, quiet=out.quiet) as api:
        who = api.get(WHOAMI)
    file = connection.credentials_file()
    keep(file, where.url, Login(where.token or "", where.trust.fingerprint, where.trust.ca_cert), out)
    out.say(
        _(
            "Logged in to %(url)s as %(name)s; saved in %(file)s",
            url=where.url,
            name=person or who.get("name"),
            file=file,
        )
    )
    return ExitCode.OK


def logout(args: argparse.Namespace) -> int:
    out = Output(args)
    file = connection.credentials_file()
    saved = credentials.read(file)
    named = args.server or getattr(args, "url", None)
    url = named.rstrip("/") if named else saved.current
    if not url or url not in saved.servers:
        raise fail(
            _("not logged in to %(url)s", url=url) if url else _("not logged in"),
            _("%(file)s has no token for this server", file=file),
            "simpletuner login URL",
            "not_found",
            ExitCode.NOT_FOUND,
        )
    current = forget(file, url, out)
    if current:
        text = _("Forgot the token for %(url)s; current server: %(current)s", url=url, current=current)
    else:
        text = _("Forgot the token for %(url)s", url=url)
    out.say(text)
    return ExitCode.OK


def whoami(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.get(WHOAMI), WHO)
    return ExitCode.OK


def _in_person(args: argparse.Namespace, target: ConnectionSettings) -> bool:
    """Tells whether somebody logs in with a browser; otherwise a token is handed in."""
    if sum((args.web, args.device, bool(args.token_file))) > 1:
        raise usage(
            _("there is one way to log in at a time"),
            _("--web, --device and --token-file exclude each other"),
            f"simpletuner login {target.url}",
        )
    return bool(args.web or args.device or (sys.stdin.isatty() and not args.token_file))


def _token_and_person(args: argparse.Namespace, target: ConnectionSettings, out: Output) -> tuple[str, str]:
    """Returns the token that somebody gives this terminal in a browser, and their name."""
    by = token_by_browser if has_browser() and not args.device else token_by_device
    return by(target, out)


def _print_call(args: argparse.Namespace, *, in_person: bool) -> int:
    """Prints the call with which a log-in begins, for `--curl`; neither is a token read nor anything saved."""
    with connected(args) as api:
        if in_person:
            api.post(TERMINALS, {"name": terminal_name()})
        else:
            api.get(WHOAMI)
    return ExitCode.OK


def _token(args: argparse.Namespace, url: str) -> str:
    if args.token_file and args.token_file != "-":
        try:
            text = Path(os.path.expanduser(args.token_file)).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = _("it is not text") if isinstance(error, UnicodeDecodeError) else error.strerror
            raise usage(
                _("cannot read %(token_file)s", token_file=args.token_file),
                why or str(error),
                _("verify the path"),
            ) from None
    elif sys.stdin.isatty():
        try:
            text = getpass.getpass(_("API token for %(url)s: ", url=url))
        except EOFError:
            text = ""
    else:
        text = sys.stdin.readline()
    token = text.strip()
    if not token:
        raise usage(
            _("no token was given"), _("the input was empty"), f"simpletuner login {url} < token-file"
        )
    if token.startswith(f"{WORKER}_"):
        raise usage(
            _("this is a worker token"),
            _(
                "it starts with '%(worker)s_'; people and programs log in with one that starts with "
                "'%(api)s_'",
                worker=WORKER,
                api=API,
            ),
            "simpletuner tokens create NAME --permission …",
        )
    return token
