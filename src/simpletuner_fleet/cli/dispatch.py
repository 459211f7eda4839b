"""Parses the arguments of `simpletuner`, calls the command, and reports errors."""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable
from typing import cast

from simpletuner_fleet.cli import interrupts
from simpletuner_fleet.cli.commands import build_parser
from simpletuner_fleet.cli.frame.command_name import as_called
from simpletuner_fleet.cli.frame.errors import CliError, CurlPrinted, ExitCode, output_refused, usage
from simpletuner_fleet.cli.frame.output import close_quietly, tell
from simpletuner_fleet.cli.frame.text import clean_lines
from simpletuner_fleet.cli.frame.unforeseen import unforeseen
from simpletuner_fleet.cli.programs.hide_token import hide_token
from simpletuner_fleet.client.troubles import Trouble, format_trouble
from simpletuner_fleet.languages import _, speak

Command = Callable[[argparse.Namespace], int]
FOR_PROGRAMS = ("json", "jsonl", "csv", "name")
ENGLISH_ONLY = {"SIMPLETUNER_LANG": "en"}
"""What programs read never changes with the language."""
WORKERS_VERBS = ("list", "get", "create", "drain", "resume", "rotate-token", "set-labels", "delete")


def dispatch(arguments: list[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else arguments
    _have_somewhere_to_write()
    _write_any_character()
    speak()
    try:
        if arguments is None and "worker" in words:
            hide_token(words, os.environ)
        return _flushed(_outcome(words))
    except CliError as error:
        return _tell(error.trouble)


def _outcome(words: list[str]) -> int:
    """Runs the command, reports an error, and returns the exit code; output may still be waiting to be written."""
    try:
        return _run(words)
    except CliError as error:
        return _tell(error.trouble)
    except CurlPrinted:
        return ExitCode.OK
    except BrokenPipeError:
        close_quietly(sys.stdout)
        close_quietly(sys.stderr)
        return ExitCode.READER_LEFT
    except Exception as error:  # nobody is shown where in our code it was, unless they ask
        return _tell(unforeseen(error, os.environ))


def _tell(trouble: Trouble) -> int:
    tell(as_called(clean_lines(format_trouble(trouble))))
    return trouble.exit


def _run(words: list[str]) -> int:
    args, extra = build_parser(words).parse_known_args(words)
    if extra:
        raise _about_extra(args, extra)
    if not args.run:
        args.parser.print_help(sys.stdout if not words else sys.stderr)
        return ExitCode.OK if not words else ExitCode.USAGE
    if getattr(args, "output", "table") in FOR_PROGRAMS:
        speak(ENGLISH_ONLY)
    command = _command(args.run)
    interrupts.raise_again()
    return command(args)


def _command(path: str) -> Command:
    """Imports the command only now, so that no command waits for the imports of another."""
    module, name = path.split(":")
    name = f"{name}_" if name in ("import", "list", "set") else name
    return cast(Command, getattr(importlib.import_module(module), name))


def _about_extra(args: argparse.Namespace, extra: list[str]) -> CliError:
    if args.command == "worker" and extra[0] in WORKERS_VERBS:
        return usage(
            _("'simpletuner worker %(word)s' is not a command", word=extra[0]),
            _(
                "`worker` starts an agent on this machine. Did you mean `simpletuner %(words)s`?",
                words=" ".join(["workers", *extra]),
            ),
            f"simpletuner {' '.join(['workers', *extra])}",
        )
    return cast(CliError, args.parser.unknown_arguments(extra))


def _have_somewhere_to_write() -> None:
    """Opens /dev/null for a stream that the caller has closed (`>&-`), which Python sets to None."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def _write_any_character() -> None:
    """Makes stdout write a character that it cannot encode as an escape, instead of raising an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _flushed(code: int) -> int:
    """Flushes stdout, so that an error in writing is reported here and not while the interpreter exits."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has seen enough, and the command is done
        close_quietly(sys.stdout)
    except OSError as error:
        close_quietly(sys.stdout)
        if code == ExitCode.OK:
            raise output_refused(error) from None
    return code
