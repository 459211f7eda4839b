"""The table of commands. It knows names and options; what a command does is found by name only when it runs."""

from simpletuner_fleet.cli.commands.build import build_parser

__all__ = ["build_parser"]
