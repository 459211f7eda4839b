"""Trains the network with NumPy alone; torch_backend.py does the same on a GPU."""

import math
from typing import Protocol

import numpy as np

from simpletuner_fleet.trainers.demo.learning.data import Floats, Labels
from simpletuner_fleet.trainers.demo.learning.diffusion import LEVELS, SIGNAL, Example
from simpletuner_fleet.trainers.demo.learning.network import Architecture, Pass, condition_features, views

STATE = ("weights", "average", "momentum", "square")
FIRST_DECAY, SECOND_DECAY, TINY = 0.9, 0.99, 1e-8
LARGEST_GRADIENT = 1.0
_ONE = np.float32(1)


class Backend(Protocol):
    @property
    def device(self) -> str: ...

    def step(self, example: Example, step: int, learning_rate: float) -> tuple[float, float]:
        """Trains on one batch; returns the loss and the gradient's norm."""
        ...

    def predict_noise(self, noisy: Floats, levels: Labels, labels: Labels) -> Floats:
        """Predicts by the averaged weights."""
        ...

    def state(self) -> dict[str, Floats]:
        """Returns the four vectors of STATE; they may be views: write or copy them before the next step."""
        ...

    def allocate(self, gigabytes: float) -> None:
        """Holds that much of the device's memory until the end."""
        ...


def average_share(step: int) -> float:
    """Returns how much of the average a step replaces: much at first, half a percent later."""
    return 1.0 - min(0.995, (1 + step) / (10 + step))


def level_features(architecture: Architecture, levels: Labels, labels: Labels) -> Floats:
    return condition_features(architecture, (levels / LEVELS).astype(np.float32), labels)


class NumpyBackend:
    device = "cpu"

    def __init__(self, architecture: Architecture, state: dict[str, Floats]) -> None:
        self._architecture = architecture
        self._state = {name: state[name].astype(np.float32, copy=True) for name in STATE}
        self._gradient = np.zeros_like(self._state["weights"])
        self._ballast: list[np.ndarray] = []

    def step(self, example: Example, step: int, learning_rate: float) -> tuple[float, float]:
        predicted, passed = self._forward(self._state["weights"], example)
        error: Floats = predicted - example.noise
        loss = float(np.mean(error * error))
        # The prediction is √(1 - signal)·noisy + √signal·output: see _forward.
        slope: Floats = error * np.sqrt(SIGNAL[example.levels])[:, None]
        slope *= np.float32(2 / error.size)
        passed.gradient_into(views(self._architecture, self._gradient), slope)
        norm = float(np.linalg.norm(self._gradient))
        if norm > LARGEST_GRADIENT:
            self._gradient *= np.float32(LARGEST_GRADIENT / norm)
        self._follow_gradient(step, learning_rate)
        return loss, norm

    def predict_noise(self, noisy: Floats, levels: Labels, labels: Labels) -> Floats:
        return self._forward(self._state["average"], Example(noisy, levels, labels, noisy))[0]

    def state(self) -> dict[str, Floats]:
        return self._state

    def allocate(self, gigabytes: float) -> None:
        self._ballast.append(np.ones(int(gigabytes * 2**30), dtype=np.uint8))

    def _forward(self, flat: Floats, example: Example) -> tuple[Floats, Pass]:
        """Predicts the noise from the network's velocity, which is bounded at every level of noise."""
        features = level_features(self._architecture, example.levels, example.labels)
        passed = Pass(self._architecture, views(self._architecture, flat), example.noisy, features)
        signal = SIGNAL[example.levels][:, None]
        return np.sqrt(_ONE - signal) * example.noisy + np.sqrt(signal) * passed.output, passed

    def _follow_gradient(self, step: int, learning_rate: float) -> None:
        """Updates the weights by Adam, then the average."""
        weights, average, momentum, square = (self._state[name] for name in STATE)
        gradient = self._gradient
        momentum += (gradient - momentum) * np.float32(1 - FIRST_DECAY)
        square += (gradient * gradient - square) * np.float32(1 - SECOND_DECAY)
        rate = learning_rate / (1 - FIRST_DECAY**step)
        scale = np.sqrt(square) * np.float32(1 / math.sqrt(1 - SECOND_DECAY**step)) + np.float32(TINY)
        weights -= np.float32(rate) * momentum / scale
        average += (weights - average) * np.float32(average_share(step))
