"""Finds the trainer's own command `simpletuner` beside ours."""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from simpletuner_fleet.cli.frame.command_name import ALWAYS, SHORT

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


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
