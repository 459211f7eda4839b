"""Runs one training from its config to its model, or to the checkpoint it was stopped at."""

import math
import os
import sys
import time
from pathlib import Path

import numpy as np

from simpletuner_fleet.trainers.demo.faults import Faults
from simpletuner_fleet.trainers.demo.learning.backend import Backend, NumpyBackend
from simpletuner_fleet.trainers.demo.learning.data import CLASSES, SIDE, Floats
from simpletuner_fleet.trainers.demo.learning.diffusion import (
    FINAL,
    FIRST_WEIGHTS,
    LEVELS,
    TRAINING,
    VALIDATION,
    chance,
    every_kind,
    make_example,
    sample,
)
from simpletuner_fleet.trainers.demo.learning.network import Architecture, first_weights
from simpletuner_fleet.trainers.demo.learning.torch_backend import TorchBackend, torch_with_cuda
from simpletuner_fleet.trainers.demo.output.checkpoints import Checkpoint, Checkpoints
from simpletuner_fleet.trainers.demo.output.metrics import MetricsLog
from simpletuner_fleet.trainers.demo.output.model import write_model
from simpletuner_fleet.trainers.demo.output.png import write_grid
from simpletuner_fleet.trainers.demo.output.progress import ProgressBar
from simpletuner_fleet.trainers.demo.requests import SAVE, VALIDATE, Requests, StopSignal
from simpletuner_fleet.trainers.demo.settings import Settings, SettingsError, read_settings

VALIDATION_STEPS = 50


def train(config: Path) -> int:
    """Returns the exit code: 0 when finished; 128 + signal when stopped, after a checkpoint."""
    settings, unknown = read_settings(config)
    stop = StopSignal()
    stop.listen(ignore_sigterm=settings.demo_ignore_sigterm)
    if unknown:
        print(f"The demo trainer does not use: {', '.join(sorted(unknown))}.", flush=True)
    return Training(settings, stop).run()


class Training:
    def __init__(self, settings: Settings, stop: StopSignal) -> None:
        self._settings, self._stop = settings, stop
        self._output = Path(settings.output_dir)
        self._output.mkdir(parents=True, exist_ok=True)
        self._architecture = Architecture()
        self._checkpoints = Checkpoints(
            self._output, keep=settings.checkpoints_total_limit, guard_delay_s=settings.demo_guard_delay_s
        )
        self._checkpoints.clean_up()
        loaded = self._checkpoints.load(settings.resume_from_checkpoint, self._architecture)
        start = loaded or self._beginning()
        self._step, self._seed, self._resumed = start.step, start.seed, loaded is not None
        self._backend = make_backend(settings.demo_device, self._architecture, start.state)
        self._saves, self._validations = Requests.from_environment(SAVE), Requests.from_environment(VALIDATE)
        attempt = int(os.environ.get("SIMPLETUNER_ATTEMPT", "1"))
        self._faults = Faults(settings, attempt=attempt, stopping=lambda: bool(stop))

    def run(self) -> int:
        self._announce()
        if self._settings.demo_allocate_gb:
            self._backend.allocate(self._settings.demo_allocate_gb)
        self._metrics = MetricsLog(self._output / "metrics.jsonl", resumed_from=self._step)
        self._progress = ProgressBar(sys.stderr, total=self._settings.max_train_steps, start=self._step)
        while self._step < self._settings.max_train_steps and not self._stop:
            self._train_one_step()
            self._save_and_show()
        self._progress.end()
        finished = self._step >= self._settings.max_train_steps
        if finished or self._step:
            self._save()
        self._metrics.close()
        return self._finish() if finished else self._say_stopped()

    def _train_one_step(self) -> None:
        step = self._step + 1
        self._faults.before(step)
        example = make_example(chance(self._seed, TRAINING, step), self._settings.train_batch_size)
        rate = learning_rate(self._settings, step)
        loss, norm = self._backend.step(self._faults.spoil(step, example), step, rate)
        self._step = step
        speed = self._progress.rate(step)
        self._metrics.write(
            {
                "step": step,
                "total": self._settings.max_train_steps,
                "loss": loss,
                "lr": rate,
                "grad_norm": norm,
                "steps_per_s": round(speed, 3),
                "time": round(time.time(), 3),
            }
        )
        self._progress.show(step, f"loss={loss:.4g}, lr={rate:.3g}")

    def _save_and_show(self) -> None:
        if self._saves.take() or self._is_due(self._settings.checkpointing_steps):
            self._save()
        if self._validations.take() or self._is_due(self._settings.validation_steps):
            self._validate()

    def _is_due(self, every: int) -> bool:
        return every > 0 and self._step % every == 0

    def _save(self) -> None:
        self._metrics.sync()
        checkpoint = Checkpoint(step=self._step, seed=self._seed, state=self._backend.state())
        self._checkpoints.save(checkpoint, self._architecture)

    def _validate(self) -> None:
        folder = self._output / "validation_images"
        folder.mkdir(exist_ok=True)
        images = self._sample(VALIDATION, steps=VALIDATION_STEPS, eta=0.0)
        write_grid(folder / f"step_{self._step}_shapes_0_{SIDE}x{SIDE}.png", images)

    def _finish(self) -> int:
        average = self._backend.state()["average"]
        write_model(self._output, self._architecture, average, step=self._step, seed=self._seed)
        write_grid(self._output / "samples.png", self._sample(FINAL))
        print(
            f"Finished at step {self._step}: model.npz, model.json and samples.png are written.", flush=True
        )
        return 0

    def _say_stopped(self) -> int:
        where = f"saved in checkpoint-{self._step}" if self._step else "nothing to save yet"
        print(f"Stopped at step {self._step} by a signal; {where}.", flush=True)
        return self._stop.exit_code

    def _sample(self, purpose: int, *, steps: int = LEVELS, eta: float = 1.0) -> Floats:
        of_each = math.ceil(self._settings.num_eval_images / len(CLASSES))
        labels = every_kind(of_each * len(CLASSES))
        images = sample(self._backend, labels, chance(self._seed, purpose, self._step), steps=steps, eta=eta)
        return np.nan_to_num(images)

    def _announce(self) -> None:
        start = f"resumed from checkpoint-{self._step}" if self._resumed else "from the beginning"
        parts = f"{self._architecture.size:,} weights on {self._backend.device}"
        print(f"Training to step {self._settings.max_train_steps}, {start}: {parts}.", flush=True)

    def _beginning(self) -> Checkpoint:
        seed = self._settings.seed
        weights = first_weights(self._architecture, chance(seed, FIRST_WEIGHTS, 0))
        nothing = np.zeros_like(weights)
        state = {"weights": weights, "average": weights, "momentum": nothing, "square": nothing}
        return Checkpoint(step=0, seed=seed, state=state)


def make_backend(device: str, architecture: Architecture, state: dict[str, Floats]) -> Backend:
    torch = None if device == "cpu" else torch_with_cuda()
    if torch is None and device == "cuda":
        raise SettingsError("demo_device is cuda, but there is no torch here that sees a GPU.")
    if torch is None:
        return NumpyBackend(architecture, state)
    return TorchBackend(torch, architecture, state, "cuda")


def learning_rate(settings: Settings, step: int) -> float:
    """Returns the learning rate, which rises for the first steps, then falls along half a cosine to nothing."""
    rise = min(1.0, step / max(1, settings.lr_warmup_steps))
    return (
        settings.learning_rate * rise * 0.5 * (1 + math.cos(math.pi * (step - 1) / settings.max_train_steps))
    )
