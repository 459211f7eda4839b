"""Runs the `simpletuner limits` commands: shows and sets how many jobs may run at a time."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode, usage
from simpletuner_fleet.cli.frame.output import Output, field
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.languages import _

LIMITS = "/api/queue/concurrency"
NAMES = {"global": "global_running", "user": "user_running", "team": "team_running"}
SHOWN = (
    *(
        field("global_running", "IN ALL"),
        field("user_running", "EACH USER"),
        field("team_running", "EACH TEAM"),
    ),
    *(field("enable_fair_share", "FAIR SHARE"), field("fair_share_half_life_s", "HALF-LIFE (S)")),
)


def get(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.get(LIMITS), SHOWN, id_field="global_running")
    return ExitCode.OK


def set_(args: argparse.Namespace) -> int:
    body: dict[str, Any] = dict(_limit(text) for text in args.limit)
    if args.fair_share:
        body["enable_fair_share"] = args.fair_share == "on"
    if args.half_life is not None:
        body["fair_share_half_life_s"] = args.half_life
    with connected(args) as api:
        Output(args).item(api.post(LIMITS, body), SHOWN, id_field="global_running")
    return ExitCode.OK


def _limit(text: str) -> tuple[str, int | None]:
    name, _sign, number = text.partition("=")
    if name not in NAMES or not (number.isdecimal() or number == "none"):
        raise usage(
            _("'%(text)s' is no limit", text=text),
            _("a limit is global=N, user=N or team=N, and none for no limit"),
            "simpletuner limits set --limit user=4",
        )
    return NAMES[name], None if number == "none" else int(number)
