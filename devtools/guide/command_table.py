"""Every command and option of the command line, from the parser that reads them."""

import argparse
from collections.abc import Iterator

from simpletuner_fleet.cli.commands import build_parser
from simpletuner_fleet.cli.commands.shared_options import talk_options

PROGRAMS = ("server", "worker")
"""Their options are settings, which have tables of their own."""


def command_rows() -> Iterator[tuple[str, str]]:
    """Yields commands with their help, each followed by the options that are its own."""
    shared = {name for action in talk_options()._actions for name in action.option_strings}
    yield from _rows(build_parser(), "simpletuner", "", shared)


def _rows(
    parser: argparse.ArgumentParser, words: str, help: str, shared: set[str]
) -> Iterator[tuple[str, str]]:
    children = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in children:
        told = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, child in action.choices.items():
            yield from _rows(child, f"{words} {name}", told.get(name, ""), shared)
    if not children:
        yield _with_arguments(parser, words), help
        if words.removeprefix("simpletuner ").split()[0] not in (*PROGRAMS, "service"):
            yield from _options(parser, shared)


def _with_arguments(parser: argparse.ArgumentParser, words: str) -> str:
    given = [str(action.metavar or action.dest) for action in parser._actions if not action.option_strings]
    return " ".join((words, *given))


def _options(parser: argparse.ArgumentParser, shared: set[str]) -> Iterator[tuple[str, str]]:
    for action in parser._actions:
        if action.option_strings and not shared & set(action.option_strings):
            value = f" {action.metavar or action.dest.upper()}" if action.nargs != 0 else ""
            yield ", ".join(action.option_strings) + value, action.help or ""
