"""Starts the command `simpletuner`, a name that the trainer's package has, too.

Whichever of the two packages was installed last owns the file. Ours then finds the trainer by its metadata and hands
over every command that the trainer has, so that it works as if we were not there; `simpletuner-fleet` is ours alone.
"""

import sys

from simpletuner_fleet.cli import interrupts

TRAINERS_TOO = frozenset({"server", "worker", "jobs", "backup"})
"""Words of ours that releases of the trainer have with a meaning of their own."""


def main() -> int:
    interrupts.leave_at_once()
    from simpletuner_fleet.cli.beside_trainer import has_trainer, trainers_command

    words = sys.argv[1:]
    trainer = trainers_command() if has_trainer(sys.path) else None
    if trainer is None or is_only_ours(words):
        # The trainer must not pay for our imports.
        from simpletuner_fleet.cli.main import main as fleet

        return fleet()
    if words and words[0] in TRAINERS_TOO and sys.stderr.isatty():
        from simpletuner_fleet.cli.frame.command_name import ALWAYS
        from simpletuner_fleet.languages import _, speak

        speak()
        fleets = f"{ALWAYS} {words[0]}"
        print(
            _("note: this is the trainer's own command; the fleet's is: %(command)s", command=fleets),
            file=sys.stderr,
        )
    interrupts.raise_again()
    return int(trainer.load()() or 0)


def is_only_ours(words: list[str]) -> bool:
    from simpletuner_fleet.cli.commands.build import command_words

    return bool(words) and words[0] in command_words() - TRAINERS_TOO
