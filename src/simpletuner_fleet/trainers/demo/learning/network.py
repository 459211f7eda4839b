"""Implements the noise-prediction network: a residual MLP that is given the time and the kind, with a manual gradient.

All weights lie in one flat vector, so that the optimiser and the average are a few operations on it; the named
matrices are views of that vector.
"""

import dataclasses
import math

import numpy as np

from simpletuner_fleet.trainers.demo.learning.data import CLASSES, PIXELS, Floats, Labels


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """Sets the dimensions of the network: they must be equal for weights to fit."""

    width: int = 128
    hidden: int = 256
    blocks: int = 3
    time_features: int = 32
    condition: int = 64

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes: dict[str, tuple[int, ...]] = {
            "condition.weight": (self.time_features + len(CLASSES), self.condition),
            "condition.bias": (self.condition,),
            "input.weight": (PIXELS, self.width),
            "input.bias": (self.width,),
        }
        for block in range(self.blocks):
            shapes |= {
                f"block{block}.inner": (self.width, self.hidden),
                f"block{block}.condition": (self.condition, self.hidden),
                f"block{block}.bias": (self.hidden,),
                f"block{block}.outer": (self.hidden, self.width),
            }
        return shapes | {
            "output.weight": (self.width, PIXELS),
            "output.bias": (PIXELS,),
            "skip.weight": (self.condition, 1),
        }

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes().values())


Named = dict[str, Floats]


def views(architecture: Architecture, flat: Floats) -> Named:
    """Returns the named matrices inside the flat vector, sharing its memory."""
    named_parts: Named = {}
    start = 0
    for name, shape in architecture.shapes().items():
        end = start + math.prod(shape)
        named_parts[name] = flat[start:end].reshape(shape)
        start = end
    return named_parts


def first_weights(architecture: Architecture, random: np.random.Generator) -> Floats:
    """Draws weights that are scaled by fan-in.

    What adds to the stream or the output starts at zero, so training starts calmly.
    """
    flat = np.zeros(architecture.size, dtype=np.float32)
    for name, matrix in views(architecture, flat).items():
        if name.endswith((".bias", ".outer")) or name in ("output.weight", "skip.weight"):
            continue
        matrix[:] = random.standard_normal(matrix.shape, dtype=np.float32) / math.sqrt(matrix.shape[0])
    return flat


def condition_features(architecture: Architecture, time: Floats, labels: Labels) -> Floats:
    """Returns waves of the time in (0, 1], and the kind as one of four."""
    frequencies = np.geomspace(1.0, 100.0, architecture.time_features // 2, dtype=np.float32)
    angles = time[:, None] * frequencies
    kinds = np.eye(len(CLASSES), dtype=np.float32)[labels]
    return np.concatenate([np.sin(angles), np.cos(angles), kinds], axis=1)


class Pass:
    """Computes one forward pass, and remembers what its gradient needs."""

    def __init__(self, architecture: Architecture, weights: Named, pixels: Floats, features: Floats) -> None:
        self._weights, self._pixels, self._features = weights, pixels, features
        self._blocks = [f"block{block}" for block in range(architecture.blocks)]
        raw = features @ weights["condition.weight"] + weights["condition.bias"]
        self._condition, self._condition_slope = _silu(raw)
        flow: Floats = pixels @ weights["input.weight"] + weights["input.bias"]
        self._flows, self._inners, self._slopes = [flow], [], []
        for block in self._blocks:
            raw = flow @ weights[f"{block}.inner"]
            raw += self._condition @ weights[f"{block}.condition"]
            raw += weights[f"{block}.bias"]
            inner, slope = _silu(raw)
            flow = flow + inner @ weights[f"{block}.outer"]
            self._inners.append(inner)
            self._slopes.append(slope)
            self._flows.append(flow)
        # How much of the input is noise depends on the time alone: a direct path spares the stream all of it.
        skip = self._condition @ weights["skip.weight"]
        self.output: Floats = flow @ weights["output.weight"] + weights["output.bias"] + skip * pixels

    def gradient_into(self, gradient: Named, output_gradient: Floats) -> None:
        """Writes the loss's gradient by every weight."""
        weights = self._weights
        gradient["output.weight"][:] = self._flows[-1].T @ output_gradient
        gradient["output.bias"][:] = output_gradient.sum(axis=0)
        flow = output_gradient @ weights["output.weight"].T
        skip = (output_gradient * self._pixels).sum(axis=1, keepdims=True)
        gradient["skip.weight"][:] = self._condition.T @ skip
        condition = skip @ weights["skip.weight"].T
        for index in reversed(range(len(self._blocks))):
            block = self._blocks[index]
            gradient[f"{block}.outer"][:] = self._inners[index].T @ flow
            raw = (flow @ weights[f"{block}.outer"].T) * self._slopes[index]
            gradient[f"{block}.inner"][:] = self._flows[index].T @ raw
            gradient[f"{block}.condition"][:] = self._condition.T @ raw
            gradient[f"{block}.bias"][:] = raw.sum(axis=0)
            condition += raw @ weights[f"{block}.condition"].T
            flow = flow + raw @ weights[f"{block}.inner"].T
        gradient["input.weight"][:] = self._pixels.T @ flow
        gradient["input.bias"][:] = flow.sum(axis=0)
        condition *= self._condition_slope
        gradient["condition.weight"][:] = self._features.T @ condition
        gradient["condition.bias"][:] = condition.sum(axis=0)


def _silu(raw: Floats) -> tuple[Floats, Floats]:
    """Returns x·sigmoid(x) and its slope."""
    gate = 0.5 * np.tanh(0.5 * raw) + np.float32(0.5)
    value = raw * gate
    return value, gate + value * (1.0 - gate)
