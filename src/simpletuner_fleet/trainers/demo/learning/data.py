"""Draws training images on the fly: four kinds of shape, grey, 16x16, each pixel in [-1, 1]."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Labels = NDArray[np.int64]
Distances = NDArray[np.float64]

SIDE = 16
PIXELS = SIDE * SIDE
CLASSES = ("ring", "square", "cross", "stripes")

CENTRE = (6.0, 9.0)
RADIUS = (3.0, 5.0)
BRIGHTNESS = (0.6, 1.0)
_HALF_LINE = 0.9


def draw_batch(random: np.random.Generator, count: int) -> tuple[Floats, Labels]:
    """Draws `count` images of random kind, place, size and brightness, with their kinds."""
    labels = random.integers(0, len(CLASSES), count)
    return draw_kinds(random, labels), labels


def draw_kinds(random: np.random.Generator, labels: Labels) -> Floats:
    place = random.uniform(*CENTRE, (2, len(labels)))
    radius = random.uniform(*RADIUS, len(labels))
    brightness = random.uniform(*BRIGHTNESS, len(labels))
    covered = np.empty((len(labels), SIDE, SIDE))
    for kind, name in enumerate(CLASSES):
        chosen = labels == kind
        covered[chosen] = coverage(name, place[:, chosen], radius[chosen])
    images = covered * (1.0 + brightness[:, None, None]) - 1.0
    return images.reshape(len(labels), PIXELS).astype(np.float32)


def coverage(kind: str, place: Distances, radius: Distances) -> Distances:
    """Returns how much of each pixel the shape covers, 0 to 1, from the distance to its edge."""
    axis = np.arange(SIDE, dtype=np.float64)
    across = axis[None, None, :] - place[0][:, None, None]
    down = axis[None, :, None] - place[1][:, None, None]
    return np.clip(0.5 - _EDGE_DISTANCES[kind](across, down, radius[:, None, None]), 0.0, 1.0)


def _ring(across: Distances, down: Distances, radius: Distances) -> Distances:
    return np.abs(np.hypot(across, down) - radius) - _HALF_LINE


def _square(across: Distances, down: Distances, radius: Distances) -> Distances:
    return np.maximum(np.abs(across), np.abs(down)) - 0.85 * radius


def _cross(across: Distances, down: Distances, radius: Distances) -> Distances:
    bar = np.minimum(np.abs(across), np.abs(down)) - _HALF_LINE
    inside: Distances = np.maximum(bar, np.maximum(np.abs(across), np.abs(down)) - radius)
    return inside


def _stripes(across: Distances, down: Distances, radius: Distances) -> Distances:
    """Draws them diagonally, all over the image; the radius is a little more than half a period."""
    period = 1.5 * radius
    along = (across + down) / np.sqrt(2.0)
    from_middle: Distances = np.abs(along - period * np.round(along / period))
    return from_middle - period / 4.0


_EDGE_DISTANCES: dict[str, Callable[[Distances, Distances, Distances], Distances]] = {
    "ring": _ring,
    "square": _square,
    "cross": _cross,
    "stripes": _stripes,
}
