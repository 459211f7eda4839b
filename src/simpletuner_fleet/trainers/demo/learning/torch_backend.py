"""Runs the same network, optimiser and state on a GPU. Torch is imported here only, in the trainer's own process."""

import importlib
import math
import os
from typing import Any

import numpy as np

from simpletuner_fleet.trainers.demo.learning.backend import (
    FIRST_DECAY,
    LARGEST_GRADIENT,
    SECOND_DECAY,
    STATE,
    TINY,
    average_share,
    level_features,
)
from simpletuner_fleet.trainers.demo.learning.data import Floats, Labels
from simpletuner_fleet.trainers.demo.learning.diffusion import SIGNAL, Example
from simpletuner_fleet.trainers.demo.learning.network import Architecture


def torch_with_cuda() -> Any | None:
    """Returns Torch, if it is installed and sees a GPU; an attempt that was given no GPU does not even look."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return None
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


class TorchBackend:
    def __init__(self, torch: Any, architecture: Architecture, state: dict[str, Floats], device: str) -> None:
        self._torch, self._architecture, self.device = torch, architecture, device
        self._state = {name: torch.tensor(state[name], device=device) for name in STATE}
        self._state["weights"].requires_grad_(True)
        self._signal = torch.tensor(SIGNAL, device=device)
        self._ballast: list[Any] = []

    def step(self, example: Example, step: int, learning_rate: float) -> tuple[float, float]:
        predicted = self._forward(self._state["weights"], example.noisy, example.levels, example.labels)
        loss = ((predicted - self._here(example.noise)) ** 2).mean()
        (gradient,) = self._torch.autograd.grad(loss, self._state["weights"])
        norm = float(gradient.norm())
        if norm > LARGEST_GRADIENT:
            gradient *= LARGEST_GRADIENT / norm
        with self._torch.no_grad():
            self._follow_gradient(gradient, step, learning_rate)
        return float(loss.detach()), norm

    def predict_noise(self, noisy: Floats, levels: Labels, labels: Labels) -> Floats:
        with self._torch.no_grad():
            predicted: Floats = self._forward(self._state["average"], noisy, levels, labels).cpu().numpy()
        return predicted

    def state(self) -> dict[str, Floats]:
        return {name: np.array(vector.detach().cpu().numpy()) for name, vector in self._state.items()}

    def allocate(self, gigabytes: float) -> None:
        size = int(gigabytes * 2**30)
        self._ballast.append(self._torch.ones(size, dtype=self._torch.uint8, device=self.device))

    def _here(self, array: Any) -> Any:
        return self._torch.as_tensor(array, device=self.device)

    def _views(self, flat: Any) -> dict[str, Any]:
        shapes = self._architecture.shapes()
        pieces = flat.split([math.prod(shape) for shape in shapes.values()])
        return {name: piece.view(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}

    def _forward(self, flat: Any, noisy: Floats, levels: Labels, labels: Labels) -> Any:
        silu = self._torch.nn.functional.silu
        weights, pixels = self._views(flat), self._here(noisy)
        features = self._here(level_features(self._architecture, levels, labels))
        condition = silu(features @ weights["condition.weight"] + weights["condition.bias"])
        flow = pixels @ weights["input.weight"] + weights["input.bias"]
        for block in (f"block{index}" for index in range(self._architecture.blocks)):
            shift = condition @ weights[f"{block}.condition"] + weights[f"{block}.bias"]
            flow = flow + silu(flow @ weights[f"{block}.inner"] + shift) @ weights[f"{block}.outer"]
        output = flow @ weights["output.weight"] + weights["output.bias"]
        output = output + (condition @ weights["skip.weight"]) * pixels
        signal = self._signal[self._here(levels)][:, None]
        return (1 - signal).sqrt() * pixels + signal.sqrt() * output

    def _follow_gradient(self, gradient: Any, step: int, learning_rate: float) -> None:
        weights, average, momentum, square = (self._state[name] for name in STATE)
        momentum += (gradient - momentum) * (1 - FIRST_DECAY)
        square += (gradient * gradient - square) * (1 - SECOND_DECAY)
        scale = square.sqrt() / math.sqrt(1 - SECOND_DECAY**step) + TINY
        weights -= learning_rate / (1 - FIRST_DECAY**step) * momentum / scale
        average += (weights - average) * average_share(step)
