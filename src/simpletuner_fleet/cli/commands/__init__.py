"""Describes all commands: their names and options. What a command does is imported by name only when it runs."""

from simpletuner_fleet.cli.commands.build import build_parser

__all__ = ["build_parser"]
