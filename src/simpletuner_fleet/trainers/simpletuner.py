"""Runs the SimpleTuner trainer that is installed for another Python (`--trainer-python`)."""

import functools
from pathlib import Path

from msgspec.structs import replace

from simpletuner_fleet.core.configs.options import Options
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import (
    SIGNAL_VARIABLE,
    CheckpointHabits,
    ask_by_signal_file,
    signal_file,
)
from simpletuner_fleet.trainers.command import substitution, working_folder
from simpletuner_fleet.trainers.config_files import change_setting, read_setting, write_config_files
from simpletuner_fleet.trainers.contract import Launch, Paths, Surroundings
from simpletuner_fleet.trainers.environment import trainer_environment, without_secrets
from simpletuner_fleet.trainers.packages import has_packages, version_of
from simpletuner_fleet.trainers.simpletuner_options import ask_options
from simpletuner_fleet.trainers.simpletuner_settings import (
    cache_key,
    dataloader_for,
    link_caches,
    setting,
    settings_for,
)


class SimpleTunerTrainer(CheckpointHabits):
    name = "simpletuner"

    def __init__(self, surroundings: Surroundings) -> None:
        self._worker = surroundings.environment
        self._python = surroundings.trainer_python
        self._available = functools.cache(self._probe)

    def available(self) -> bool:
        return self._available()

    def launch(self, order: JobSubmit, paths: Paths) -> Launch:
        settings = settings_for(order, paths)
        write_config_files(replace(order, dataloader=dataloader_for(order, paths)), paths, settings)
        link_caches(Path(setting(settings, "output_dir")), paths)
        environment = trainer_environment(order, paths, self._worker)
        environment |= {
            "CONFIG_BACKEND": "json",
            "SIMPLETUNER_CONFIG_BACKEND": "json",
            "CONFIG_PATH": str(
                paths.config_file.with_suffix("")
            ),  # every version of it adds the suffix itself
            SIGNAL_VARIABLE: str(signal_file(paths)),
        }
        cwd = working_folder(order.config, substitution(order, paths), paths)
        return Launch(argv=self._argv(order), env=environment, cwd=cwd)

    def output_folder(self, paths: Paths) -> Path:
        """The one that was written into the attempt's config.json."""
        chosen = read_setting(paths, "output_dir")
        return paths.attempt_dir / chosen if isinstance(chosen, str) and chosen else paths.output_dir

    def installed(self) -> str | None:
        version = version_of(self._python, self._worker, "simpletuner")
        return f"{version} for {self._python}" if version else None

    def options(self) -> Options | None:
        return ask_options(self._python, without_secrets(self._worker))

    def cache_key(self, order: JobSubmit) -> str | None:
        return cache_key(order)

    def request_checkpoint(self, paths: Paths) -> bool:
        return ask_by_signal_file(signal_file(paths))

    def place_resume(self, order: JobSubmit, paths: Paths, checkpoint: Path, launch: Launch) -> Launch:
        change_setting(paths, "resume_from_checkpoint", "latest")
        return launch

    def _argv(self, order: JobSubmit) -> list[str]:
        """Returns what its own `train` command runs, without looking for an accelerate config of the user's."""
        return [
            *(self._python, "-m", "accelerate.commands.launch"),
            f"--num_processes={max(1, order.num_processes)}",
            "--num_machines=1",
            f"--mixed_precision={setting(order.config, 'mixed_precision') or 'bf16'}",
            f"--dynamo_backend={setting(order.config, 'dynamo_backend') or 'no'}",
            *("-m", "simpletuner.train"),
        ]

    def _probe(self) -> bool:
        return has_packages(self._python, self._worker, "simpletuner", "accelerate")
