"""`login`, `logout`, `whoami`."""

import argparse
import getpass
import sys
from pathlib import Path

from simpletuner_fleet.cli import connection, credentials, values
from simpletuner_fleet.cli.api import Api, connected
from simpletuner_fleet.cli.credentials import Credentials, Login
from simpletuner_fleet.cli.errors import Exit, fail, usage
from simpletuner_fleet.cli.output import Output, field
from simpletuner_fleet.core.tokens import API, WORKER

WHO = (field("id"), field("name"), field("permissions"))


def login(args: argparse.Namespace) -> int:
    """The token is tried before it is kept."""
    out = Output(args)
    if args.server:
        try:
            args.url = values.url(args.server)
        except ValueError as error:
            raise usage(
                f"'{args.server}' is no server", str(error), "simpletuner login https://HOST:8001"
            ) from None
    found = connection.find(args)
    where = found._replace(token=_token(args, found.url), token_from="login")
    with Api(where, quiet=out.quiet) as api:
        who = api.get("/api/whoami")
    file = connection.credentials_file()
    known = credentials.read(file)
    entry = Login(where.token or "", where.trust.fingerprint, where.trust.ca_cert)
    credentials.write(file, Credentials(where.url, {**known.servers, where.url: entry}))
    out.say(f"Logged in to {where.url} as {who.get('name')}; kept in {file}")
    return Exit.OK


def logout(args: argparse.Namespace) -> int:
    file = connection.credentials_file()
    known = credentials.read(file)
    url = args.server.rstrip("/") if args.server else known.current
    if not url or url not in known.servers:
        raise fail(
            f"not logged in to {url}" if url else "not logged in",
            f"{file} has no token for it",
            "simpletuner login URL",
            "not_found",
            Exit.NOT_FOUND,
        )
    rest = {server: entry for server, entry in known.servers.items() if server != url}
    current = known.current if known.current in rest else next(iter(rest), None)
    credentials.write(file, Credentials(current, rest))
    Output(args).say(f"Forgot the token for {url}" + (f"; current server: {current}" if current else ""))
    return Exit.OK


def whoami(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.get("/api/whoami"), WHO)
    return Exit.OK


def _token(args: argparse.Namespace, url: str) -> str:
    if args.token_file and args.token_file != "-":
        try:
            given = Path(args.token_file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise usage(f"cannot read {args.token_file}", str(error), "verify the path") from None
    elif sys.stdin.isatty() and not args.token_file:
        try:
            given = getpass.getpass(f"API token for {url}: ")
        except EOFError:
            given = ""
    else:
        given = sys.stdin.readline()
    token = given.strip()
    if not token:
        raise usage("no token was given", "the input was empty", f"simpletuner login {url} < token-file")
    if token.startswith(f"{WORKER}_"):
        raise usage(
            "this is a worker's token",
            f"it begins with '{WORKER}_'; people and programs log in with one that begins with '{API}_'",
            "simpletuner tokens create NAME --permission …",
        )
    return token
