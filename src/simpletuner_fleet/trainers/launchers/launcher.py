"""Runs a script or module in several processes by a launcher of the trainer's Python."""

import functools
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simpletuner_fleet.core.configs.bundle import check_launcher, processes_of
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.command import filled_environment, substitution, working_folder
from simpletuner_fleet.trainers.config_files import write_config_files
from simpletuner_fleet.trainers.contract import Launch, Paths, Surroundings, TrainerError
from simpletuner_fleet.trainers.packages import has_packages


class LauncherTrainer(CheckpointHabits, ABC):
    """Implements what the accelerate and torchrun trainers share; each adds its module and its flags."""

    spans_nodes = True
    name: str
    module: str
    """Run with `python -m`."""
    packages: tuple[str, ...]
    """What the trainer's Python must have for it."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._worker = surroundings.environment
        self._python = surroundings.trainer_python
        self._answers = surroundings.answers
        self._available = functools.cache(self._probe)

    def available(self) -> bool:
        return self._available()

    def launch(self, order: JobSubmit, paths: Paths) -> Launch:
        settings = order.config
        try:
            check_launcher(self.name, settings)
            processes = processes_of(settings) or max(1, order.num_processes)
        except Invalid as error:
            raise TrainerError(error.detail, next_step=error.next) from error
        if paths.span and processes % paths.span.nodes:
            raise TrainerError(
                f"So many processes ({processes}) cannot be shared equally by so many nodes ({paths.span.nodes})."
            )
        fill = substitution(order, paths)
        cwd = working_folder(settings, fill, paths)
        program = _program(order, fill, paths, cwd)
        argv = [
            *(self._python, "-m", self.module),
            *rank_log_flags(settings.get("launcher_args", []), paths),
            *self.flags(order, paths, processes, free_port()),
            *map(fill, settings.get("launcher_args", [])),
            *program,
            *map(fill, settings.get("args", [])),
        ]
        write_config_files(order, paths, settings)
        return Launch(argv=argv, env=filled_environment(order, paths, self._worker), cwd=cwd)

    @abstractmethod
    def flags(self, order: JobSubmit, paths: Paths, processes: int, port: int) -> list[str]:
        """Returns the flags for this many processes, of all nodes together; on one node they meet at this port."""

    def _probe(self) -> bool:
        return has_packages(self._python, self._worker, self._answers, *self.packages)


def rank_log_flags(words: list[str], paths: Paths) -> list[str]:
    """Returns the flags that put each rank's output where the worker looks for it, if files were asked for."""
    names = {word.partition("=")[0].replace("-", "_") for word in words}
    requested_flags = names & {"__tee", "__redirects", "_t", "_r"}
    return [f"--log_dir={paths.rank_log_dir}"] if requested_flags and "__log_dir" not in names else []


def free_port() -> int:
    """Returns one that nobody listens on now: two attempts on one machine must not meet at a launcher's usual port."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        port: int = listener.getsockname()[1]
        return port


def _program(order: JobSubmit, fill: Callable[[str], str], paths: Paths, cwd: str) -> list[str]:
    """Returns the program: one of the bundle's own files, or a file of the worker as seen from the working folder."""
    settings: dict[str, Any] = order.config
    if settings.get("module"):
        return ["-m", str(settings["module"])]
    name = fill(settings["script"])
    script = paths.config_dir / name if name in order.files else Path(cwd) / Path(name).expanduser()
    if name not in order.files:
        paths.must_see("settings.script", str(script))
    if name not in order.files and not (script.is_file() and os.access(script, os.R_OK)):
        raise TrainerError(
            f"settings.script: there is no file {str(script)!r} on this worker.",
            next_step="Give its whole path there, set settings.cwd, or put it into the config's files.",
        )
    return [str(script)]
