"""The demo trainer's arithmetic: gradient, schedule, samplers, judge."""

import numpy as np
import pytest

from simpletuner_fleet.trainers.demo.judge import judge_images
from simpletuner_fleet.trainers.demo.learning.backend import NumpyBackend
from simpletuner_fleet.trainers.demo.learning.data import CLASSES, PIXELS, draw_batch
from simpletuner_fleet.trainers.demo.learning.diffusion import (
    LEVELS,
    SIGNAL,
    Example,
    chance,
    every_kind,
    make_example,
    sample,
)
from simpletuner_fleet.trainers.demo.learning.network import (
    Architecture,
    Pass,
    condition_features,
    first_weights,
    views,
)
from simpletuner_fleet.trainers.demo.learning.torch_backend import TorchBackend, torch_with_cuda

SMALL = Architecture(width=8, hidden=12, blocks=2, time_features=4, condition=6)


def test_the_gradient_worked_out_by_hand_is_the_slope_that_small_changes_show() -> None:
    random = np.random.default_rng(3)
    flat = first_weights(SMALL, random) + np.float32(0.1) * random.standard_normal(
        SMALL.size, dtype=np.float32
    )
    flat = flat.astype(np.float64)
    pixels = random.standard_normal((5, PIXELS))
    features = condition_features(SMALL, random.random(5, dtype=np.float32), np.arange(5) % 4).astype(
        np.float64
    )
    weighing = random.standard_normal((5, PIXELS))

    def loss(weights: np.ndarray) -> float:
        return float((Pass(SMALL, views(SMALL, weights), pixels, features).output * weighing).sum())  # type: ignore[arg-type]

    gradient = np.zeros_like(flat)
    passed = Pass(SMALL, views(SMALL, flat), pixels, features)  # type: ignore[arg-type]
    passed.gradient_into(views(SMALL, gradient), weighing)  # type: ignore[arg-type]
    start = 0
    for name, shape in SMALL.shapes().items():
        size = int(np.prod(shape))
        for index in start + random.choice(size, min(size, 6), replace=False):
            change = np.zeros_like(flat)
            change[index] = 1e-5
            slope = (loss(flat + change) - loss(flat - change)) / 2e-5
            assert gradient[index] == pytest.approx(slope, rel=1e-4, abs=1e-6), name
        start += size


def test_the_schedule_goes_from_the_image_to_almost_pure_noise() -> None:
    assert SIGNAL[0] == 1.0
    assert SIGNAL[-1] < 0.001
    assert np.all(np.diff(SIGNAL) <= 0)


class KnowsTheAnswer:
    """A perfect predictor for one image."""

    def __init__(self, clean: np.ndarray) -> None:
        self.clean = clean

    def predict_noise(self, noisy: np.ndarray, levels: np.ndarray, labels: np.ndarray) -> np.ndarray:
        signal = SIGNAL[levels][:, None]
        noise: np.ndarray = (noisy - np.sqrt(signal) * self.clean) / np.sqrt(1 - signal)
        return noise


@pytest.mark.parametrize(("steps", "eta"), [(LEVELS, 1.0), (50, 0.0)])
def test_with_perfect_predictions_both_samplers_arrive_at_the_image(steps: int, eta: float) -> None:
    image, labels = draw_batch(np.random.default_rng(1), 4)
    clean = (image + np.float32(0.55)) / np.float32(0.71)
    images = sample(KnowsTheAnswer(clean), labels, np.random.default_rng(2), steps=steps, eta=eta)
    assert np.abs(images - image).max() < 1e-3


def test_chance_depends_on_seed_purpose_and_step_alone() -> None:
    def draw(seed: int, purpose: int, step: int) -> float:
        return chance(seed, purpose, step).random()

    assert draw(1, 1, 1) == draw(1, 1, 1)
    assert len({draw(seed, purpose, step) for seed in (1, 2) for purpose in (0, 1) for step in (0, 1)}) == 8


def test_the_judge_knows_real_images_from_noise_from_wrong_kinds_and_from_one_image_repeated() -> None:
    random = np.random.default_rng(5)
    images, labels = draw_batch(random, 200)
    real = judge_images(images, labels)
    assert real.right >= 0.99
    assert real.likeness > 0.97
    assert real.variety > 0.9
    assert real.recognisable
    noise = judge_images(random.standard_normal(images.shape, dtype=np.float32), labels)
    assert noise.right < 0.4
    assert noise.likeness < 0.3
    wrong = judge_images(images, (labels + 1) % len(CLASSES))
    assert wrong.right <= 0.01
    one_each = images[[int(np.flatnonzero(labels == kind)[0]) for kind in range(len(CLASSES))]]
    repeated = judge_images(one_each[every_kind(200)], every_kind(200))
    assert repeated.right == 1.0
    assert not repeated.recognisable


def test_torch_gives_the_same_as_numpy_where_there_is_a_gpu() -> None:
    torch = torch_with_cuda()
    if torch is None:
        pytest.skip("no torch with CUDA here")
    architecture = Architecture()
    weights = first_weights(architecture, np.random.default_rng(0))
    nothing = np.zeros_like(weights)
    state = {"weights": weights, "average": weights, "momentum": nothing, "square": nothing}
    both = NumpyBackend(architecture, state), TorchBackend(torch, architecture, state, "cuda")
    for step in range(1, 6):
        example: Example = make_example(chance(1, 1, step), 32)
        results = [backend.step(example, step, 1e-3) for backend in both]
        assert results[0] == pytest.approx(results[1], rel=1e-3)
    example = make_example(chance(1, 1, 99), 32)
    predicted = [backend.predict_noise(example.noisy, example.levels, example.labels) for backend in both]
    assert np.abs(predicted[0] - predicted[1]).max() < 1e-2
