"""Defines the rows of the command table: a command, its arguments, and the function that runs it."""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

from simpletuner_fleet.languages import _

WITHOUT_IDS = ("table", "json", "jsonl")
"""Of what has no id that a script could go on with."""
FORMATS = (*WITHOUT_IDS, "name")


class Argument(NamedTuple):
    """Describes one argument or option in the terms of argparse."""

    names: tuple[str, ...]
    options: dict[str, Any]


class OneOf(NamedTuple):
    """Groups options that exclude each other."""

    arguments: tuple[Argument, ...]


Arguments = tuple[Argument | OneOf, ...]


class Verb(NamedTuple):
    name: str
    help: str
    arguments: Arguments = ()
    run: str = ""
    """`module:function` within the command line's package; without it the function of the verb's name."""
    formats: tuple[str, ...] = FORMATS
    """None where the output has a form of its own, as a log has."""
    calls: bool = True
    """Calls the server, so that `--curl` can print how."""


class Noun(NamedTuple):
    name: str
    help: str
    module: str
    """Holds the functions of the verbs that name no other."""
    verbs: tuple[Verb, ...]


class Command(NamedTuple):
    """Describes a command that has no subcommands."""

    name: str
    run: str
    help: str
    arguments: Arguments = ()
    prints: bool = True
    """Takes the options of output; without it those of the connection alone."""
    calls: bool = True
    """Calls the server, so that `--curl` can print how."""
    formats: tuple[str, ...] = FORMATS


def argument(
    *names: str, read: Callable[[str], Any] | None = None, may_be_empty: bool = False, **options: Any
) -> Argument:
    """Returns an argument; `read` converts its text, and raises ValueError with a sentence where it cannot.

    An option with an empty text is refused unless it may be empty: it is a script's unset variable, and would be ignored.
    """
    takes_text = names[0].startswith("-") and options.get("action") in (None, "append")
    if read is None and takes_text and not may_be_empty and not options.keys() & {"choices", "type"}:
        read = _some_text
    if read is not None:
        options["type"] = _for_argparse(read)
    return Argument(names, options)


def switch(*names: str, help: str) -> Argument:
    return argument(*names, action="store_true", help=help)


def repeated(name: str, metavar: str, help: str, **options: Any) -> Argument:
    return argument(name, action="append", default=[], metavar=metavar, help=help, **options)


def _some_text(text: str) -> str:
    if not text:
        raise ValueError(_("it needs a value"))
    return text


def _for_argparse(read: Callable[[str], Any]) -> Callable[[str], Any]:
    def typed(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed
