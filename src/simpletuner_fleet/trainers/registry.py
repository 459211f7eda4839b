"""Registers the trainers of this worker: the built-in ones, and those that installed packages bring."""

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Self

from simpletuner_fleet.core.training.trainer_release import TrainerRelease
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits, habits_of
from simpletuner_fleet.trainers.command import CommandTrainer
from simpletuner_fleet.trainers.contract import Answers, Surroundings, Trainer, TrainerError
from simpletuner_fleet.trainers.demo.plugin import DemoTrainer
from simpletuner_fleet.trainers.finding import LookedAt
from simpletuner_fleet.trainers.launchers.accelerate import AccelerateTrainer
from simpletuner_fleet.trainers.launchers.torchrun import TorchrunTrainer
from simpletuner_fleet.trainers.simpletuner.trainer import SimpleTunerTrainer

log = logging.getLogger(__name__)

ENTRY_POINTS = "simpletuner_fleet.trainers"
BUILT_IN: tuple[Callable[[Surroundings], Trainer], ...] = (
    CommandTrainer,
    SimpleTunerTrainer,
    AccelerateTrainer,
    TorchrunTrainer,
    DemoTrainer,
)


class Registry:
    def __init__(
        self,
        trainers: Iterable[Trainer],
        trainer_python: str = sys.executable,
        looked_at: tuple[LookedAt, ...] = (),
    ) -> None:
        self.trainer_python = trainer_python
        self.looked_at = looked_at
        """Pythons in which the fleet's own trainer was looked for, and not found."""
        self._trainers = {trainer.name: trainer for trainer in trainers}

    @classmethod
    def load(
        cls,
        *,
        trainer_python: str | None = None,
        environment: Mapping[str, str] | None = None,
        looked_at: tuple[LookedAt, ...] = (),
        answers: Answers | None = None,
    ) -> Self:
        """Loads all trainers. A plug-in may replace a built-in one by taking its name."""
        surroundings = Surroundings(
            environment=dict(os.environ if environment is None else environment),
            trainer_python=trainer_python or sys.executable,
            answers={} if answers is None else answers,
        )
        built_in = [make(surroundings) for make in BUILT_IN]
        available = [*built_in, *plug_ins(entry_points(group=ENTRY_POINTS), surroundings)]
        return cls(available, surroundings.trainer_python, looked_at)

    def has_simpletuner(self) -> bool:
        trainer = self._trainers.get(SimpleTunerTrainer.name)
        return trainer is not None and trainer.available()

    def simpletuner(self) -> TrainerRelease:
        """Tells what is installed of the fleet's own trainer. May take seconds the first time: call it in a thread."""
        return (
            habits_of(self.get(SimpleTunerTrainer.name)).release()
            if self.has_simpletuner()
            else TrainerRelease()
        )

    def get(self, name: str) -> Trainer:
        try:
            return self._trainers[name]
        except KeyError:
            known = ", ".join(sorted(self._trainers))
            raise TrainerError(f"This worker has no trainer {name!r}; it has {known}.") from None

    def habits(self, name: str) -> CheckpointHabits:
        """Returns the habits of a trainer that may have been uninstalled since it ran."""
        return habits_of(self._trainers.get(name))

    def available(self) -> list[str]:
        """Returns the names of those that can run here. May take seconds: call it in a thread."""
        return sorted(name for name, trainer in self._trainers.items() if trainer.available())

    def that_save_on_request(self, names: Iterable[str]) -> list[str]:
        """Returns those of them that can be asked for a checkpoint. May take seconds: call it in a thread."""
        return [name for name in names if self.habits(name).saves_on_request()]

    def that_validate_on_request(self, names: Iterable[str]) -> list[str]:
        """Returns those of them that can be asked to validate. May take seconds: call it in a thread."""
        return [name for name in names if self.habits(name).validates_on_request()]


def plug_ins(entry_points: Iterable[EntryPoint], surroundings: Surroundings) -> list[Trainer]:
    trainers: list[Trainer] = []
    for entry_point in entry_points:
        try:
            trainers.append(entry_point.load()(surroundings))
        except Exception:  # anybody's code: one broken plug-in must not keep the worker from starting
            log.exception("the trainer plug-in %r cannot be loaded and is left out", entry_point.name)
    return trainers
