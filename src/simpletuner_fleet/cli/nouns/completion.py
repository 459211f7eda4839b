"""Prints completion scripts: static text, so that TAB starts Python only to complete an id or a name."""

import argparse
import sys
import zlib
from collections.abc import Iterator
from typing import Any

from simpletuner_fleet.cli.commands import build_parser
from simpletuner_fleet.cli.frame.command_name import command_name
from simpletuner_fleet.cli.frame.errors import ExitCode

NAMES = "{} list -o name 2>/dev/null"
IDS_AND_NAMES = "{} list 2>/dev/null | tail -n +2 | cut -f1,2 | tr '\\t' '\\n'"
LISTS = {
    ("jobs", "job"): NAMES.format("jobs"),
    ("jobs", "jobs"): NAMES.format("jobs"),
    ("jobs", "config_ref"): NAMES.format("configs"),
    ("workers", "worker"): IDS_AND_NAMES.format("workers"),
    ("configs", "name"): NAMES.format("configs"),
    ("data", "dataset"): IDS_AND_NAMES.format("data"),
    ("secrets", "name"): NAMES.format("secrets"),
    ("pools", "name"): NAMES.format("pools"),
    ("machines", "id"): NAMES.format("machines"),
    ("notifications", "id"): NAMES.format("notifications"),
    ("webhooks", "id"): NAMES.format("webhooks"),
    ("tokens", "id"): NAMES.format("tokens"),
    ("users", "user"): IDS_AND_NAMES.format("users"),
    ("users", "role"): NAMES.format("roles"),
    ("roles", "role"): NAMES.format("roles"),
    ("sign-in", "provider"): NAMES.format("sign-in"),
    ("teams", "team"): IDS_AND_NAMES.format("teams"),
    ("teams", "user"): IDS_AND_NAMES.format("users"),
    ("quotas", "id"): NAMES.format("quotas"),
    ("prices", "id"): NAMES.format("prices"),
    ("prices", "worker"): IDS_AND_NAMES.format("workers"),
    ("approvals", "job"): NAMES.format("approvals"),
}
"""By noun and argument, the command that lists what could stand there."""
BASH = r"""
%(function)s() {
  local word typed
  while IFS= read -r word; do
    case $1 in
      \'*) [[ $word != *\'* ]] && typed="'$word" || continue ;;
      \"*) [[ $word != *[\"\$\`\\!]* ]] && typed="\"$word" || continue ;;
      *) typed=$word && printf -v word %%q "$word" ;;
    esac
    [[ $typed == "$1"* || $word == "$1"* ]] && printf '%%s\n' "$word"
  done < <(%(command)s)
}"""
"""After an opening quote bash takes a word as it is: those are offered that the quote makes harmless."""
ZSH = """
%(function)s() {
  compadd -- ${(f)"$(%(command)s)"}
}"""


def completion(args: argparse.Namespace) -> int:
    import shtab  # used by this command alone

    parser = build_parser()
    for action, listing in _named_things(parser):
        action.complete = _pressed(f"{command_name()} {listing}")  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, shell=args.shell) + "\n")
    return ExitCode.OK


def _pressed(command: str) -> dict[str, Any]:
    """Returns how each shell completes what the command prints, a word on each line, when TAB is pressed.

    Anybody may have chosen these names, so no shell may expand them: neither now nor when the completed line is run.
    """
    function = f"_simpletuner_list_{zlib.crc32(command.encode()):08x}"
    bodies = {"bash": BASH, "zsh": ZSH}
    preamble = {shell: body % {"function": function, "command": command} for shell, body in bodies.items()}
    return {"bash": function, "zsh": function, "fish": f"({command})", "preamble": preamble}


def _named_things(parser: argparse.ArgumentParser) -> Iterator[tuple[argparse.Action, str]]:
    for noun, below in _children(parser):
        for _verb, command in _children(below):
            for action in command._actions:
                listing = LISTS.get((noun, action.dest))
                if listing and not action.option_strings:
                    yield action, listing


def _children(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            choices: dict[str, Any] = action.choices
            yield from choices.items()
