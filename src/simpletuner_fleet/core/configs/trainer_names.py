"""Checks whether any worker has the trainer that a config names."""

from collections.abc import Collection

from simpletuner_fleet.core.configs.options import OptionFinding
from simpletuner_fleet.core.configs.spelling import nearest

BUILT_IN = ("accelerate", "command", "demo", "simpletuner", "torchrun")


def check_trainer(name: str, of_workers: Collection[str] = ()) -> list[OptionFinding]:
    """Returns an error where the name resembles a known trainer, and a warning where no worker has it yet.

    `of_workers` are the trainers that workers have.
    """
    known = sorted({*BUILT_IN, *of_workers})
    if name in known:
        return []
    near = nearest(name, known, 0.75)
    return [
        OptionFinding(
            path="$.trainer",
            level="error" if near else "warning",
            detail=f"No worker has a trainer '{name}'.",
            next=f"Did you mean '{near}'?" if near else f"There are {', '.join(known)}.",
        )
    ]
