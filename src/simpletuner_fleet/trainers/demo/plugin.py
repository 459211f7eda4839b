"""Runs the demo trainer with the worker's own Python."""

import importlib.util
import sys

from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.command import substitution
from simpletuner_fleet.trainers.config_files import write_config_files
from simpletuner_fleet.trainers.contract import Launch, Paths, Surroundings, TrainerError
from simpletuner_fleet.trainers.demo.settings import SettingsError, parse_settings
from simpletuner_fleet.trainers.environment import trainer_environment


class DemoTrainer:
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
            env=trainer_environment(order, paths, self._worker),
            cwd=str(paths.attempt_dir),
        )
