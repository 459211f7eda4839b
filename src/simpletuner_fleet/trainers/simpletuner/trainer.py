"""Runs the SimpleTuner trainer that is installed for another Python (`--trainer-python`)."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.configs.options import Options
from simpletuner_fleet.core.training.checkpoint import ROLLING
from simpletuner_fleet.core.training.completion import CleanExit, shortfall
from simpletuner_fleet.core.training.trainer_release import TrainerRelease, release_of
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import (
    GUARD,
    SIGNAL_VARIABLE,
    VALIDATION_SIGNAL,
    CheckpointHabits,
    FoundCheckpoint,
    ask_by_signal_file,
    complete_checkpoints,
    signal_file,
)
from simpletuner_fleet.trainers.command import substitution, working_folder
from simpletuner_fleet.trainers.config_files import change_setting, read_setting, write_config_files
from simpletuner_fleet.trainers.contract import Launch, Paths, Surroundings
from simpletuner_fleet.trainers.environment import trainer_environment, without_secrets
from simpletuner_fleet.trainers.finding import TRAINER_PACKAGES
from simpletuner_fleet.trainers.launchers.accelerate_launch import MODULE, config_flag, launch_flags
from simpletuner_fleet.trainers.launchers.launcher import free_port
from simpletuner_fleet.trainers.packages import has_packages, version_of
from simpletuner_fleet.trainers.simpletuner.options import ask_options
from simpletuner_fleet.trainers.simpletuner.picture_paths import follow_pictures
from simpletuner_fleet.trainers.simpletuner.picture_views import show_pictures
from simpletuner_fleet.trainers.simpletuner.settings import (
    cache_key,
    dataloader_for,
    link_caches,
    setting,
    settings_for,
)
from simpletuner_fleet.trainers.simpletuner.unmarked_checkpoints import has_unsettled, settled_checkpoints

LOCAL_TRACKERS = frozenset({"tensorboard", "simpletuner", "all"})
"""What `report_to` says where numbers are written to the output folder."""
LINES_AFTER_ERROR = 12
"""What a release that hides its errors may still say after one, as its helpers end."""


class SimpleTunerTrainer(CheckpointHabits):
    spans_nodes = True
    name = "simpletuner"

    def __init__(self, surroundings: Surroundings) -> None:
        self._worker = surroundings.environment
        self._python = surroundings.trainer_python
        self._answers = surroundings.answers
        self._available = functools.cache(self._probe)
        self._release = functools.cache(self._find_release)

    def available(self) -> bool:
        return self._available()

    def release(self) -> TrainerRelease:
        """Tells what the installed one can do. May take seconds the first time: call it in a thread."""
        return self._release()

    def launch(self, order: JobSubmit, paths: Paths) -> Launch:
        settings = settings_for(order, paths)
        write_config_files(replace(order, dataloader=dataloader_for(order, paths)), paths, settings)
        link_caches(settings, paths)
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
        return Launch(argv=self._argv(order, paths), env=environment, cwd=cwd)

    def output_folder(self, paths: Paths) -> Path:
        """Returns the one that was written into the attempt's config.json."""
        chosen = read_setting(paths, "output_dir")
        return paths.attempt_dir / chosen if isinstance(chosen, str) and chosen else paths.output_dir

    def checkpoints(self, paths: Paths) -> list[FoundCheckpoint]:
        folder = self.output_folder(paths)
        return complete_checkpoints(folder) if self.release().guard else settled_checkpoints(folder)

    def keeps(self, paths: Paths, name: str) -> int | None:
        rolling = name.endswith(ROLLING)
        limit = "checkpoints_rolling_total_limit" if rolling else "checkpoints_total_limit"
        return _count(read_setting(paths, limit))

    def bars_tell(self, paths: Paths) -> bool:
        """Returns False where trackers on this disk tell more than bars: TensorBoard's file appears minutes later."""
        trackers = read_setting(paths, "report_to")
        return not (isinstance(trackers, str) and set(re.split(r"[,\s]+", trackers)) & LOCAL_TRACKERS)

    def has_unfinished(self, paths: Paths) -> bool:
        return not self.release().guard and has_unsettled(self.output_folder(paths))

    def show_data(self, paths: Paths, may_write: Callable[[str], bool]) -> None:
        show_pictures(paths, may_write)
        follow_pictures(paths, self.output_folder(paths))

    def installed(self) -> str | None:
        version = self.release().version
        return f"{version} for {self._python}" if version else None

    def options(self) -> Options | None:
        return ask_options(self._python, without_secrets(self._worker))

    def cache_key(self, order: JobSubmit) -> str | None:
        return cache_key(order)

    def saves_on_request(self) -> bool:
        return self.release().signal_file

    def request_checkpoint(self, paths: Paths) -> bool:
        """Asks for a checkpoint, except of an older release, which would never answer: nobody is to wait for it."""
        return self.release().signal_file and ask_by_signal_file(signal_file(paths))

    def validates_on_request(self) -> bool:
        return self.release().signal_file

    def request_validation(self, paths: Paths) -> bool:
        return self.release().signal_file and ask_by_signal_file(signal_file(paths), VALIDATION_SIGNAL)

    def exit_tells(self, order: JobSubmit) -> bool:
        return False

    def shortfall(self, order: JobSubmit, ended: CleanExit) -> str | None:
        """Tells why it is not complete: it has as many steps as it says, and at least one.

        Older releases end with exit code 0 whatever happened.
        """
        total = ended.total or _count(setting(order.config, "max_train_steps"))
        lines_after = 0 if self.release().exit_codes else LINES_AFTER_ERROR
        shortage = shortfall(replace(ended, total=total), lines_after_error=lines_after)
        if shortage is None and not ended.step:
            return "the trainer ended with exit code 0 before its first step"
        return shortage

    def place_resume(self, order: JobSubmit, paths: Paths, checkpoint: Path, launch: Launch) -> Launch:
        """Makes the trainer go on from it, and marks it as newer releases expect: an older one may have made it."""
        change_setting(paths, "resume_from_checkpoint", "latest")
        if self.release().guard and not (checkpoint / GUARD).exists():
            (checkpoint / GUARD).write_text("complete\n", encoding="ascii")
        follow_pictures(paths, checkpoint.parent)
        return launch

    def _argv(self, order: JobSubmit, paths: Paths) -> list[str]:
        """Returns what its own `train` command runs, without looking for an accelerate config of the user's."""
        precision = str(setting(order.config, "mixed_precision") or "bf16")
        flags = launch_flags(
            order,
            max(1, order.num_processes),
            free_port(),
            span=paths.span,
            mixed_precision=precision,
            dynamo_backend=str(setting(order.config, "dynamo_backend") or "no"),
        )
        own_config = config_flag(order, paths, mixed_precision=precision)
        return [self._python, "-m", MODULE, own_config, *flags, "-m", "simpletuner.train"]

    def _probe(self) -> bool:
        return has_packages(self._python, self._worker, self._answers, *TRAINER_PACKAGES)

    def _find_release(self) -> TrainerRelease:
        return release_of(version_of(self._python, self._worker, "simpletuner"))


def _count(value: Any) -> int | None:
    """Reads a count. 0 stands for none: epochs are counted instead of steps, and every checkpoint is kept.

    Numbers may be written as text, as command lines do.
    """
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
