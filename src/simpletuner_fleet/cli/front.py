"""Starts the command `simpletuner`, a name that the trainer's package has, too.

Whichever of the two packages was installed last owns the file. Ours then finds the trainer by its metadata and hands
over every command that the trainer has, so that it works as if we were not there; `simpletuner-fleet` is ours alone.
"""

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from simpletuner_fleet.cli.frame.command_name import ALWAYS, SHORT

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TRAINERS_TOO = frozenset({"server", "worker", "jobs", "backup"})
"""Words of ours that releases of the trainer have with a meaning of their own."""


def main() -> int:
    words = sys.argv[1:]
    trainer = trainers_command() if has_trainer(sys.path) else None
    if trainer is None or is_only_ours(words):
        # The trainer must not pay for our imports.
        from simpletuner_fleet.cli.main import main as fleet

        return fleet()
    if words and words[0] in TRAINERS_TOO and sys.stderr.isatty():
        from simpletuner_fleet.languages import _, speak

        speak()
        fleets = f"{ALWAYS} {words[0]}"
        print(
            _("note: this is the trainer's own command; the fleet's is: %(command)s", command=fleets),
            file=sys.stderr,
        )
    return int(trainer.load()() or 0)


def has_trainer(folders: Iterable[str]) -> bool:
    """Tells whether metadata of the trainer is there, by its name alone.

    Reading the metadata of every package would cost each command more time than everything else that it does.
    """
    return any(_is_trainers(name) for folder in folders for name in _names_in(folder))


def _is_trainers(name: str) -> bool:
    project, _, _ = name.partition("-")
    return name.endswith((".dist-info", ".egg-info")) and project.removesuffix(".egg").lower() == SHORT


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder or ".")
    except OSError:
        return []


def trainers_command() -> "EntryPoint | None":
    """Returns the command of the same name that another package provides."""
    from importlib.metadata import entry_points

    commands = entry_points(group="console_scripts", name=SHORT)
    others = (
        one for one in commands if one.dist is None or one.dist.name.replace("_", "-").lower() != ALWAYS
    )
    return next(others, None)


def is_only_ours(words: list[str]) -> bool:
    from simpletuner_fleet.cli.commands.build import command_words

    return bool(words) and words[0] in command_words() - TRAINERS_TOO
