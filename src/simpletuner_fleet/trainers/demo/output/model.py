"""Writes and reads the finished model: `model.npz` has the averaged weights by name, `model.json` their network."""

import dataclasses
import json
from pathlib import Path

import numpy as np

from simpletuner_fleet.trainers.demo.learning.backend import STATE, NumpyBackend
from simpletuner_fleet.trainers.demo.learning.data import CLASSES, SIDE, Floats
from simpletuner_fleet.trainers.demo.learning.network import Architecture, views
from simpletuner_fleet.trainers.demo.output.checkpoints import npz
from simpletuner_fleet.trainers.demo.output.files import write_whole


def write_model(folder: Path, architecture: Architecture, average: Floats, *, step: int, seed: int) -> None:
    facts = {
        "architecture": dataclasses.asdict(architecture),
        "classes": CLASSES,
        "image_side": SIDE,
        "global_step": step,
        "seed": seed,
    }
    write_whole(folder / "model.npz", npz(views(architecture, average)))
    write_whole(folder / "model.json", json.dumps(facts, indent=2).encode())


def read_model(folder: Path) -> NumpyBackend:
    """Reads it to sample from, not to train on: the optimiser's state is not kept with a model."""
    facts = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    architecture = Architecture(**facts["architecture"])
    with np.load(folder / "model.npz", allow_pickle=False) as arrays:
        flat = np.concatenate([arrays[name].ravel() for name in architecture.shapes()])
    return NumpyBackend(architecture, dict.fromkeys(STATE, flat))
