"""Implements the noise schedule, the training example, and the two samplers DDPM and DDIM."""

import dataclasses
import itertools
from typing import Protocol

import numpy as np

from simpletuner_fleet.trainers.demo.learning.data import CLASSES, PIXELS, Floats, Labels, draw_batch

LEVELS = 200
_MEAN, _SCALE = np.float32(-0.55), np.float32(0.71)
_DARKEST, _BRIGHTEST = (-1.0 - _MEAN) / _SCALE, (1.0 - _MEAN) / _SCALE


def _signal_left() -> Floats:
    """Returns the share of the image's variance that is left at each level, by the cosine schedule."""
    angle = (np.arange(LEVELS + 1) / LEVELS + 0.008) / 1.008 * np.pi / 2
    share = np.cos(angle) ** 2
    signal: Floats = np.clip(share / share[0], 1e-4, 1.0).astype(np.float32)
    return signal


SIGNAL = _signal_left()


@dataclasses.dataclass(frozen=True)
class Example:
    """Holds a training batch: images with noise added, how much was added, and the noise to be predicted."""

    noisy: Floats
    levels: Labels
    labels: Labels
    noise: Floats


def make_example(random: np.random.Generator, count: int) -> Example:
    images, labels = draw_batch(random, count)
    levels = random.integers(1, LEVELS + 1, count)
    noise = random.standard_normal(images.shape, dtype=np.float32)
    clean = (images - _MEAN) / _SCALE
    signal = SIGNAL[levels][:, None]
    return Example(np.sqrt(signal) * clean + np.sqrt(1 - signal) * noise, levels, labels, noise)


class Predictor(Protocol):
    """Declares what a sampler needs of a backend."""

    def predict_noise(self, noisy: Floats, levels: Labels, labels: Labels) -> Floats: ...


def sample(
    predictor: Predictor,
    labels: Labels,
    random: np.random.Generator,
    *,
    steps: int = LEVELS,
    eta: float = 1.0,
) -> Floats:
    """Draws images of the asked kinds, in [-1, 1]. With eta 1 and all steps this is DDPM; with eta 0, DDIM."""
    image = random.standard_normal((len(labels), PIXELS), dtype=np.float32)
    stops = np.linspace(LEVELS, 0, steps + 1).round().astype(int)
    for now, following in itertools.pairwise(stops):
        here, there = float(SIGNAL[now]), float(SIGNAL[following])
        noise = predictor.predict_noise(image, np.full(len(labels), now), labels)
        clean = np.clip((image - np.float32((1 - here) ** 0.5) * noise) / here**0.5, _DARKEST, _BRIGHTEST)
        noise = (image - here**0.5 * clean) / (1 - here) ** 0.5
        fresh = eta * ((1 - there) / (1 - here) * (1 - here / there)) ** 0.5
        image = there**0.5 * clean + max(1 - there - fresh**2, 0.0) ** 0.5 * noise
        image += np.float32(fresh) * random.standard_normal(image.shape, dtype=np.float32)
    finished: Floats = np.clip(image * _SCALE + _MEAN, -1.0, 1.0)
    return finished


def every_kind(count: int) -> Labels:
    """Returns `count` labels, as many of each kind, kind after kind."""
    return np.arange(count) * len(CLASSES) // count


def chance(seed: int, purpose: int, step: int) -> np.random.Generator:
    """Returns a random generator that depends only on the seed, the purpose and the step.

    What comes after a resume is what would have come.
    """
    return np.random.Generator(np.random.Philox(key=np.array([seed, step * 8 + purpose], dtype=np.uint64)))


FIRST_WEIGHTS, TRAINING, VALIDATION, FINAL, JUDGEMENT = range(5)
