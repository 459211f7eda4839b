"""Runs any program: `settings.command` is its argv, never a shell command line."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.config_files import write_config_files
from simpletuner_fleet.trainers.contract import Launch, Paths, Surroundings, TrainerError
from simpletuner_fleet.trainers.environment import gpu_list, trainer_environment


class CommandTrainer(CheckpointHabits):
    spans_nodes = True
    """Its program is told where its parts meet, and how many there are."""
    name = "command"

    def __init__(self, surroundings: Surroundings) -> None:
        self._worker = surroundings.environment

    def available(self) -> bool:
        return True

    def launch(self, order: JobSubmit, paths: Paths) -> Launch:
        fill = substitution(order, paths)
        argv = [fill(word) for word in _command(order.config)]
        cwd = working_folder(order.config, fill, paths)
        write_config_files(order, paths, order.config)
        return Launch(argv=argv, env=filled_environment(order, paths, self._worker), cwd=cwd)


def substitution(order: JobSubmit, paths: Paths) -> Callable[[str], str]:
    """Returns a function that fills in the three known words; every other brace stays as it is."""
    known = {
        "{config}": str(paths.config_file),
        "{gpus}": gpu_list(order),
        "{output_dir}": str(paths.output_dir),
    }

    def fill(text: str) -> str:
        for word, value in known.items():
            text = text.replace(word, value)
        return text

    return fill


def filled_environment(order: JobSubmit, paths: Paths, worker: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment. The known words are filled in where the bundle has the last say, and nowhere else."""
    fill = substitution(order, paths)
    environment = trainer_environment(order, paths, worker)
    own = {name: fill(value) for name, value in order.env.items() if environment[name] == value}
    return {**environment, **own}


def _command(settings: dict[str, Any]) -> list[str]:
    command = settings.get("command")
    if isinstance(command, str):
        raise TrainerError(
            "settings.command must be a list of words, not one line: no shell is used.",
            next_step='Write it as ["python", "train.py"]; for a shell ["sh", "-c", "…"].',
        )
    if not isinstance(command, list) or not command or not all(isinstance(word, str) for word in command):
        raise TrainerError("settings.command must be a list of words, the program first.")
    if not command[0]:
        raise TrainerError("settings.command: the program's name is empty.")
    if any("\0" in word for word in command):
        raise TrainerError("settings.command: a word holds a NUL character.")
    return command


def working_folder(settings: dict[str, Any], fill: Callable[[str], str], paths: Paths) -> str:
    cwd = settings.get("cwd")
    if cwd is None:
        return str(paths.attempt_dir)
    if not isinstance(cwd, str) or not cwd or "\0" in cwd:
        raise TrainerError("settings.cwd must be the path of a folder.")
    folder = Path(fill(cwd)).expanduser()
    if not folder.is_absolute():
        folder = paths.attempt_dir / folder
    paths.must_see("settings.cwd", str(folder))
    if not folder.is_dir() or not os.access(folder, os.X_OK):
        raise TrainerError(f"settings.cwd: there is no folder {str(folder)!r} on this worker.")
    return str(folder)
