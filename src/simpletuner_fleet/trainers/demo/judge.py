"""Measures whether a model's images are what was asked for.

Each image is compared with every shape of every kind (all places and sizes, in small steps) by normalised
correlation. The kind of its best match is what it shows; the match's strength is how well it shows it. Real images
score 100 % and about 0.98, noise 25 % and about 0.14.
"""

import dataclasses
from pathlib import Path

import numpy as np

from simpletuner_fleet.trainers.demo.learning.data import (
    CENTRE,
    CLASSES,
    PIXELS,
    RADIUS,
    Floats,
    Labels,
    coverage,
)
from simpletuner_fleet.trainers.demo.learning.diffusion import JUDGEMENT, chance, every_kind, sample
from simpletuner_fleet.trainers.demo.output.model import read_model

IMAGES = 128
RIGHT_AT_LEAST = 0.85
LIKENESS_AT_LEAST = 0.85
VARIETY_AT_LEAST = 0.5


@dataclasses.dataclass(frozen=True)
class ModelScore:
    right: float
    """The share of images that show the kind that was asked for; chance gives 0.25."""
    right_by_class: dict[str, float]
    likeness: float
    """The mean correlation with the nearest shape of the kind that was asked for."""
    variety: float
    """Distinct nearest shapes, as a share of what as many real images have: 1 is as varied, 0 is one image."""

    @property
    def recognisable(self) -> bool:
        return (
            self.right >= RIGHT_AT_LEAST
            and self.likeness >= LIKENESS_AT_LEAST
            and self.variety >= VARIETY_AT_LEAST
        )


def judge_model(folder: Path, *, images: int = IMAGES) -> ModelScore:
    """Samples anew from the finished model in the folder, always with the same seed."""
    labels = every_kind(images)
    return judge_images(sample(read_model(folder), labels, chance(0, JUDGEMENT, 0)), labels)


def judge_images(images: Floats, labels: Labels) -> ModelScore:
    shapes = _all_shapes()
    unit = _unit(images)
    likeness = np.empty((len(images), len(CLASSES)))
    nearest = np.empty((len(images), len(CLASSES)), dtype=np.int64)
    for kind, bank in enumerate(shapes):
        correlation = unit @ bank.T
        likeness[:, kind] = correlation.max(axis=1)
        nearest[:, kind] = correlation.argmax(axis=1)
    each = np.arange(len(images))
    right = likeness.argmax(axis=1) == labels
    distinct = len(set(zip(labels.tolist(), nearest[each, labels].tolist(), strict=True)))
    return ModelScore(
        right=float(right.mean()),
        right_by_class={name: float(right[labels == kind].mean()) for kind, name in enumerate(CLASSES)},
        likeness=float(likeness[each, labels].mean()),
        variety=min(1.0, distinct / (_VARIETY_OF_REAL * len(images))),
    )


_VARIETY_OF_REAL = 0.85
_PLACE_STEP, _SIZE_STEP = 0.5, 0.25


def _all_shapes() -> list[Floats]:
    places = np.arange(CENTRE[0] - _PLACE_STEP, CENTRE[1] + 2 * _PLACE_STEP, _PLACE_STEP)
    sizes = np.arange(RADIUS[0], RADIUS[1] + _SIZE_STEP, _SIZE_STEP)
    across, down, radius = (axis.ravel() for axis in np.meshgrid(places, places, sizes, indexing="ij"))
    drawn = (coverage(name, np.stack([across, down]), radius).reshape(-1, PIXELS) for name in CLASSES)
    return [_unit(images.astype(np.float32)) for images in drawn]


def _unit(images: Floats) -> Floats:
    centred = images - images.mean(axis=1, keepdims=True)
    unit: Floats = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-6)
    return unit
