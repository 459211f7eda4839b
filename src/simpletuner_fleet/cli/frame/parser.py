"""An argparse parser that complains in four parts and guesses what was meant."""

import argparse
import difflib
import re
import shutil
from collections.abc import Iterable
from typing import Any, NoReturn

from simpletuner_fleet.cli.frame.errors import CliError, usage
from simpletuner_fleet.languages import _

HELP_COLUMN = 27


class Help(argparse.HelpFormatter):
    least_width = 40

    def __init__(self, prog: str) -> None:
        width = max(shutil.get_terminal_size().columns - 2, self.least_width)
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
        super().add_usage(usage or " ".join(["%(prog)s", "[OPTIONS]", *words]), actions, groups, prefix)


class WideHelp(Help):
    """Keeps the documented lines of `worker` whole: the longest has 82 characters."""

    least_width = 86


class Parser(argparse.ArgumentParser):
    """Complains in four parts, with a guess at what was meant."""

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", Help)
        super().__init__(allow_abbrev=False, add_help=False, **kwargs)
        self._optionals.title = "OPTIONS"

    def error(self, message: str) -> NoReturn:
        raise self.complaint(message)

    def complaint(self, message: str) -> CliError:
        choice = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if choice:
            choices = re.findall(r"'([^']+)'", choice[2]) or [name.strip() for name in choice[2].split(",")]
            return self._unknown(choice[1], choices)
        return usage(
            f"{self.prog}: {message}",
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

    def _unknown(self, word: str, names: Iterable[str]) -> CliError:
        near = difflib.get_close_matches(word, list(names), n=1)
        is_option = word.startswith("-")
        return usage(
            _("%(prog)s has no option '%(word)s'", prog=self.prog, word=word)
            if is_option
            else _("%(prog)s has no command or choice '%(word)s'", prog=self.prog, word=word),
            _("did you mean '%(near)s'?", near=near[0]) if near else _("nothing here has that name"),
            f"{self.prog} {near[0]}" if near and not is_option else f"{self.prog} --help",
        )
