"""The command `simpletuner`, which the trainer has, too.

Whichever of the two packages was installed last owns the file. Ours then finds the trainer by its metadata and hands over
whatever the trainer has a word for, so that it works as if we were not there; `simpletuner-fleet` is ours alone.
"""

import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from simpletuner_fleet.cli.commands.build import command_words
from simpletuner_fleet.cli.frame.command_name import ALWAYS, SHORT

TRAINERS_TOO = frozenset({"server", "worker", "jobs", "backup"})
"""Words of ours that releases of the trainer have with a meaning of their own."""


def main() -> int:
    words = sys.argv[1:]
    trainer = trainers_command(entry_points(group="console_scripts", name=SHORT))
    if trainer is None or is_only_ours(words):
        # The trainer must not pay for our imports.
        from simpletuner_fleet.cli.main import main as fleet

        return fleet()
    if words and words[0] in TRAINERS_TOO and sys.stderr.isatty():
        print(
            f"note: this is the trainer's own command; the fleet's is: {ALWAYS} {words[0]}", file=sys.stderr
        )
    return int(trainer.load()() or 0)


def trainers_command(commands: Iterable[EntryPoint]) -> EntryPoint | None:
    """Returns the command of the same name that another package brings."""
    others = (
        one for one in commands if one.dist is None or one.dist.name.replace("_", "-").lower() != ALWAYS
    )
    return next(others, None)


def is_only_ours(words: list[str]) -> bool:
    return bool(words) and words[0] in command_words() - TRAINERS_TOO
