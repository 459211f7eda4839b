"""Runs the `simpletuner teams` commands: administers teams, their members and their rules."""

import argparse
from typing import Any

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.cli.frame.output import Column, Output, field
from simpletuner_fleet.cli.remote.api import connected
from simpletuner_fleet.cli.remote.lookup import segment
from simpletuner_fleet.cli.remote.unreadable import say_unreadable
from simpletuner_fleet.languages import _

TEAMS = "/api/teams"
RULES = {"workers": "worker", "gpus": "gpu", "trainers": "trainer", "targets": "target"}


def _people(team: dict[str, Any]) -> str:
    return ", ".join(f"{member['name']} ({member['role']})" for member in team.get("members", ()))


def _rules(team: dict[str, Any]) -> str:
    rules = team.get("rules") or {}
    return "; ".join(f"{kind}: {', '.join(rules[kind])}" for kind in RULES if rules.get(kind))


LIST = (
    field("id"),
    field("name"),
    field("your_role", "YOU ARE"),
    field("weight"),
    Column("MEMBERS", lambda team: len(team.get("members", ()))),
    Column("MAY USE", _rules, shrinks=True),
)
DETAIL = (
    *(field("id"), field("name"), field("your_role", "YOU ARE"), field("weight"), field("visibility")),
    Column("MEMBERS", _people),
    Column("MAY USE", _rules),
    Column("MAX PRIORITY", lambda team: (team.get("rules") or {}).get("max_priority")),
)


def list_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        out, answer = Output(args), api.page(TEAMS, "teams")
        out.items("teams", answer["teams"], LIST)
        say_unreadable(out, answer, "teams delete")
    return ExitCode.OK


def get(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.get(f"{TEAMS}/{segment(args.team)}"), DETAIL)
    return ExitCode.OK


def create(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.post(TEAMS, {"name": args.name, **_shape(args)}), DETAIL)
    return ExitCode.OK


def set_(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.patch(f"{TEAMS}/{segment(args.team)}", _shape(args)), DETAIL)
    return ExitCode.OK


def delete(args: argparse.Namespace) -> int:
    with connected(args) as api:
        api.delete(f"{TEAMS}/{segment(args.team)}")
        Output(args).say(_("the team %(name)s is deleted", name=args.team))
    return ExitCode.OK


def add(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.put(_member(args), {"role": args.role}), DETAIL)
    return ExitCode.OK


def remove(args: argparse.Namespace) -> int:
    with connected(args) as api:
        Output(args).item(api.delete(_member(args)), DETAIL)
    return ExitCode.OK


def _member(args: argparse.Namespace) -> str:
    return f"{TEAMS}/{segment(args.team)}/members/{segment(args.user)}"


def _shape(args: argparse.Namespace) -> dict[str, Any]:
    """Returns only what the user gave. If any rules are given, they replace all rules of the team."""
    shape: dict[str, Any] = {}
    if args.weight is not None:
        shape["weight"] = args.weight
    if args.visibility:
        shape["visibility"] = None if args.visibility == "default" else args.visibility
    rules: dict[str, Any] = {
        kind: getattr(args, option) for kind, option in RULES.items() if getattr(args, option)
    }
    if args.max_priority is not None:
        rules["max_priority"] = args.max_priority
    if rules:
        shape["rules"] = rules
    return shape
