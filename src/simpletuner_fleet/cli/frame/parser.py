"""Extends argparse with errors in four parts and a guess at what was meant."""

import argparse
import re
import shutil
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

from simpletuner_fleet.cli.frame.errors import CliError, output_refused, usage
from simpletuner_fleet.core.configs.spelling import nearest
from simpletuner_fleet.languages import N_, _

HELP_COLUMN = 27
SHORT_LIST = 5
"""As many words are all told; of more commands the nearest one."""


SAID_BY_ARGPARSE = {
    r"the following arguments are required: (?P<names>.+)": N_("%(names)s must be given"),
    r"one of the arguments (?P<names>.+) is required": N_("one of %(names)s must be given"),
    r"not allowed with argument (?P<names>.+)": N_("it cannot be used together with %(names)s"),
    r"expected one argument": N_("it needs a value"),
    r"expected at least one argument": N_("it needs at least one value"),
    r"ignored explicit argument (?P<word>.+)": N_("it takes no value, and %(word)s was given"),
}


def _untranslated(text: str) -> str:
    return text


# argparse would look for a catalogue of "messages" on the disk, twice for each of hundreds of parsers: most of what
# it takes to make them. We have none, and translate its sentences ourselves, from English.
vars(argparse)["_"] = _untranslated


class Help(argparse.HelpFormatter):
    least_width = 78
    """Where nobody says how wide the terminal is."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size((self.least_width + 2, 24)).columns
        width = max(columns - 2, 40)
        super().__init__(prog, max_help_position=HELP_COLUMN, width=width)

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[Any],
        prefix: str | None = None,
    ) -> None:
        """Shows arguments by name; the options have their own list below."""
        arguments = [action for action in actions if not action.option_strings]
        words = [self._format_args(action, str(action.metavar or action.dest)) for action in arguments]
        text = usage or " ".join(["%(prog)s", "[OPTIONS]", *words])
        super().add_usage(self._folded(text % {"prog": self._prog}), actions, groups, prefix)

    def _folded(self, text: str) -> str:
        """Wraps a usage line, also after a bar or a comma; argparse wraps only what it has written itself."""
        indent = " " * len("usage: ")
        lines, line = [], ""
        for piece in re.findall(r"\s*[^\s,|]+[,|]?", text):
            if line and len(indent + line + piece) > self._width:
                lines.append(line)
                line = piece.strip()
            else:
                line += piece
        return f"\n{indent}".join([*lines, line]).replace("%", "%%")


class WideHelp(Help):
    """Keeps the documented lines of `worker` whole where there is no terminal: the longest has 82 characters."""

    least_width = 86


def _in_words(message: str) -> str:
    """Translates a message of argparse into the reader's language."""
    for pattern, sentence in SAID_BY_ARGPARSE.items():
        if said := re.fullmatch(pattern, message, re.DOTALL):
            return _(sentence, **said.groupdict())
    return message


class Parser(argparse.ArgumentParser):
    """Parses arguments; its errors have four parts, with a guess at what was meant."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", Help)
        super().__init__(allow_abbrev=False, add_help=False, **kwargs)
        self._optionals.title = "OPTIONS"
        self._positionals.title = "ARGUMENTS"

    def _print_message(self, message: str, file: Any = None) -> None:
        """Prints the message, or raises where it cannot; argparse would end as if it had been written."""
        try:
            print(message, end="", file=file or sys.stderr, flush=True)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise output_refused(error) from None

    def error(self, message: str) -> NoReturn:
        raise self.complaint(message)

    def complaint(self, message: str) -> CliError:
        named = re.match(r"argument (.+?): (.+)", message, re.DOTALL)
        name, message = (named[1], named[2]) if named else ("", message)
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if choice:
            choices = re.findall(r"'([^']+)'", choice[2]) or [name.strip() for name in choice[2].split(",")]
            is_word = not name.startswith("-") and len(choices) > SHORT_LIST
            return self._unknown(choice[1], choices) if is_word else self._wrong(name, choice[1], choices)
        if named:
            return usage(
                _("%(prog)s: %(name)s has a value that cannot be used", prog=self.prog, name=name),
                _in_words(message),
                f"{self.prog} --help",
            )
        return usage(
            f"{self.prog}: {_in_words(message)}",
            _("the command cannot be parsed"),
            f"{self.prog} --help",
        )

    def unknown_arguments(self, extra: list[str]) -> CliError:
        word = extra[0]
        if word.startswith("-"):
            options = [option for option in self._option_string_actions if option.startswith("--")]
            return self._unknown(word.partition("=")[0], options)
        return usage(
            _("%(prog)s: unexpected argument '%(word)s'", prog=self.prog, word=word),
            _("the command takes no further argument here"),
            f"{self.prog} --help",
        )

    def _wrong(self, name: str, word: str, choices: list[str]) -> CliError:
        near = nearest(word, choices)
        guess = [_("did you mean '%(near)s'?", near=near)] if near else []
        return usage(
            _("%(prog)s: %(name)s cannot be '%(word)s'", prog=self.prog, name=name, word=word),
            "; ".join([_("expected one of %(allowed)s", allowed=", ".join(choices)), *guess]),
            " ".join([self.prog, *([name.split("/")[-1]] if name.startswith("-") else []), near])
            if near
            else f"{self.prog} --help",
        )

    def _unknown(self, word: str, names: Iterable[str]) -> CliError:
        near = nearest(word, names)
        is_option = word.startswith("-")
        return usage(
            _("%(prog)s has no option '%(word)s'", prog=self.prog, word=word)
            if is_option
            else _("%(prog)s has no command or choice '%(word)s'", prog=self.prog, word=word),
            _("did you mean '%(near)s'?", near=near) if near else _("nothing here has that name"),
            f"{self.prog} {near}" if near and not is_option else f"{self.prog} --help",
        )
