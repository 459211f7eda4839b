"""Adds the options that many commands share: settings, output and connection."""

import argparse
from typing import Any

from simpletuner_fleet.cli.commands.rows import FORMATS
from simpletuner_fleet.cli.frame.parser import Parser
from simpletuner_fleet.settings import CLIENT, Setting


def add_setting(parser: argparse.ArgumentParser, row: Setting, default: Any = None) -> None:
    if not row.flags:
        return
    if row.action == "switch":
        parser.add_argument(
            *row.flags, dest=row.name, action="store_const", const=True, default=default, help=row.help
        )
    elif row.action == "toggle":
        parser.add_argument(
            *row.flags, dest=row.name, action=argparse.BooleanOptionalAction, default=default, help=row.help
        )
    else:
        parser.add_argument(
            *row.flags, dest=row.name, action=row.action, default=default, metavar=row.metavar, help=row.help
        )


def add_help(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-h", "--help", action="help", help="Show this help and exit")


def add_config_file(parser: argparse.ArgumentParser, default: Any = None) -> None:
    parser.add_argument(
        "--config", dest="config_file", metavar="FILE", default=default, help="Settings file (TOML)"
    )


def talk_options(formats: tuple[str, ...] = FORMATS, *, calls: bool = True) -> Parser:
    """Returns the options of a command that talks to the orchestrator; without `calls`, of one that does not.

    They are absent from the namespace until given, so that they may stand anywhere on the command line.
    """
    parent = Parser()
    output = parent.add_argument_group("OUTPUT")
    if formats:
        _add_formats(output, formats)
    output.add_argument(
        "--no-color", action="store_true", default=argparse.SUPPRESS, help="No colours (or NO_COLOR)"
    )
    output.add_argument(
        "-q", "--quiet", action="store_true", default=argparse.SUPPRESS, help="Data only: no notes, no hints"
    )
    if calls:
        output.add_argument(
            "--curl",
            action="store_true",
            default=argparse.SUPPRESS,
            help="Print the curl command instead of running it; set ADMIN_TOKEN to your token",
        )
    return connection_options(parent)


def _add_formats(output: Any, formats: tuple[str, ...]) -> None:
    named = [f"{name} (ids only)" if name == "name" else name for name in formats]
    output.add_argument(
        "--json",
        action="store_const",
        const="json",
        dest="output",
        default=argparse.SUPPRESS,
        help="Print JSON (= -o json)",
    )
    output.add_argument(
        "-o",
        "--output",
        choices=formats,
        default=argparse.SUPPRESS,
        metavar="FORMAT",
        help=" or ".join(filter(None, (", ".join(named[:-1]), named[-1]))),
    )
    output.add_argument("--fields", default=argparse.SUPPRESS, metavar="A,B.C", help="Only these fields")


def connection_options(parent: Parser | None = None) -> Parser:
    parent = parent or Parser()
    server = parent.add_argument_group("CONNECTION")
    for row in CLIENT:
        add_setting(server, row, argparse.SUPPRESS)  # type: ignore[arg-type]
    add_config_file(server, argparse.SUPPRESS)  # type: ignore[arg-type]
    server.add_argument("-h", "--help", action="help", help="Show this help and exit")
    return parent
