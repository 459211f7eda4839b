"""`simpletuner quotas …`"""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.output import Output, field
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.cli.remote.lookup import segment
from simpletuner_fleet.languages import _

QUOTAS = "/api/quotas"
LIST = (
    field("id"),
    field("kind"),
    field("whose"),
    field("ceiling"),
    field("action"),
    field("warn_at", "WARN AT"),
)
MINE = (
    *(field("id"), field("kind"), field("whose"), field("used"), field("left"), field("ceiling")),
    *(field("action", goes=1), field("frees_at", "FREES")),
)


def mine(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).items("quotas", api.items(f"{QUOTAS}/me", "quotas"), MINE)
    return ExitCode.OK


def list_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).items("quotas", api.items(QUOTAS, "quotas"), LIST)
    return ExitCode.OK


def create(args: argparse.Namespace) -> int:
    named = {"person": args.user, "team": args.team, "role": args.role}
    scope, subject = next(
        ((scope, one) for scope, one in named.items() if one), ("each" if args.each else "all", "")
    )
    body = {"kind": args.kind, "scope": scope, "subject": subject, "ceiling": args.ceiling, **_more(args)}
    with connected(args) as api:
        Output(args).item(api.post(QUOTAS, body), LIST)
    return ExitCode.OK


def set_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        body = {"ceiling": args.ceiling, **_more(args)}
        Output(args).item(api.patch(f"{QUOTAS}/{segment(args.id)}", body), LIST)
    return ExitCode.OK


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(f"{QUOTAS}/{segment(args.id)}")
        Output(args).say(_("the quota %(id)s is taken away", id=args.id))
    return ExitCode.OK


def _more(args: argparse.Namespace) -> dict[str, Any]:
    asked = {"action": args.action, "warn_at": args.warn_at}
    return {name: value for name, value in asked.items() if value is not None}
