"""Runs the demo trainer with the worker's own Python."""

import importlib.util
import sys
from pathlib import Path

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import (
    SIGNAL_VARIABLE,
    VALIDATION_SIGNAL,
    CheckpointHabits,
    FoundArtifact,
    ask_by_signal_file,
    files_beneath,
    signal_file,
)
from simpletuner_fleet.trainers.command import substitution
from simpletuner_fleet.trainers.config_files import change_setting, write_config_files
from simpletuner_fleet.trainers.contract import Launch, Paths, Surroundings, TrainerError
from simpletuner_fleet.trainers.demo.settings import SettingsError, parse_settings
from simpletuner_fleet.trainers.environment import trainer_environment

MODEL = ("model.npz", "model.json")
SAMPLES = ("samples.png", "validation_images")


class DemoTrainer(CheckpointHabits):
    name = "demo"

    def __init__(self, surroundings: Surroundings) -> None:
        self._worker = surroundings.environment

    def available(self) -> bool:
        return importlib.util.find_spec("numpy") is not None

    def launch(self, order: JobSubmit, paths: Paths) -> Launch:
        fill = substitution(order, paths)
        settings = {
            key: fill(value) if isinstance(value, str) else value for key, value in order.config.items()
        }
        for key in [key for key in settings if key.lstrip("-").replace("-", "_") == "output_dir"]:
            del settings[key]
        settings["output_dir"] = str(paths.output_dir)
        try:
            parse_settings(settings)
        except SettingsError as error:
            raise TrainerError(f"settings: {error}") from error
        write_config_files(order, paths, settings)
        return Launch(
            argv=[
                sys.executable,
                "-m",
                "simpletuner_fleet.trainers.demo",
                "--config",
                str(paths.config_file),
            ],
            env={
                **trainer_environment(order, paths, self._worker),
                SIGNAL_VARIABLE: str(signal_file(paths)),
            },
            cwd=str(paths.attempt_dir),
        )

    def request_checkpoint(self, paths: Paths) -> bool:
        return ask_by_signal_file(signal_file(paths))

    def request_validation(self, paths: Paths) -> bool:
        return ask_by_signal_file(signal_file(paths), VALIDATION_SIGNAL)

    def place_resume(self, order: JobSubmit, paths: Paths, checkpoint: Path, launch: Launch) -> Launch:
        change_setting(paths, "resume_from_checkpoint", "latest")
        return launch

    def artifacts(self, paths: Paths) -> list[FoundArtifact]:
        """Returns the model once there is one, and what it drew on the way."""
        root = paths.output_dir
        groups = {"model": MODEL, "samples": SAMPLES}
        by_suffix = {
            name: tuple(file for part in parts for file in files_beneath(root / part, root))
            for name, parts in groups.items()
        }
        if not by_suffix["model"]:
            return []
        return [FoundArtifact(name, root, files) for name, files in by_suffix.items() if files]
