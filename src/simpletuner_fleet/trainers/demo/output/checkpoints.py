"""Manages `checkpoint-N` folders: each is complete once `.guard` is inside, and the oldest are removed.

A folder being made is called `checkpoint-N-tmp`; `.guard` holds the word "complete" and is written last.
"""

import dataclasses
import io
import json
import re
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np

from simpletuner_fleet.trainers.demo.learning.backend import STATE
from simpletuner_fleet.trainers.demo.learning.data import Floats
from simpletuner_fleet.trainers.demo.learning.network import Architecture
from simpletuner_fleet.trainers.demo.output.files import sync_folder, write_whole

GUARD = ".guard"
_NAME = re.compile(r"checkpoint-(\d+)")
_FILES = {"model.npz": STATE[:2], "optimizer.npz": STATE[2:]}


class CheckpointError(Exception):
    """The checkpoint to resume from is not there or cannot be used."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    step: int
    seed: int
    state: dict[str, Floats]


class Checkpoints:
    def __init__(self, folder: Path, *, keep: int, guard_delay_s: float = 0.0) -> None:
        self._folder, self._keep, self._guard_delay_s = folder, keep, guard_delay_s

    def clean_up(self) -> None:
        """Removes what a killed process left half-made."""
        for leftover in self._folder.glob("checkpoint-*-tmp"):
            shutil.rmtree(leftover)

    def complete(self) -> list[tuple[int, Path]]:
        """Returns step and folder of each, the oldest first."""
        candidates = ((_NAME.fullmatch(path.name), path) for path in self._folder.glob("checkpoint-*"))
        return sorted((int(name[1]), path) for name, path in candidates if name and (path / GUARD).is_file())

    def save(self, checkpoint: Checkpoint, architecture: Architecture) -> Path:
        final = self._folder / f"checkpoint-{checkpoint.step}"
        if (final / GUARD).is_file():
            return final
        making = final.with_name(f"{final.name}-tmp")
        for leftover in (making, final):
            shutil.rmtree(leftover, ignore_errors=True)
        making.mkdir()
        for name, vectors in _FILES.items():
            write_whole(making / name, npz({vector: checkpoint.state[vector] for vector in vectors}))
        facts = {
            "global_step": checkpoint.step,
            "seed": checkpoint.seed,
            "architecture": dataclasses.asdict(architecture),
        }
        write_whole(making / "training_state.json", json.dumps(facts, indent=2).encode())
        making.rename(final)
        sync_folder(self._folder)
        time.sleep(self._guard_delay_s)
        write_whole(final / GUARD, b"complete\n")
        self._rotate()
        return final

    def load(self, which: str, architecture: Architecture) -> Checkpoint | None:
        """Loads a checkpoint. `latest` may find none; one named by its path or name must be there."""
        if not which:
            return None
        if which == "latest":
            known = self.complete()
            return read_checkpoint(known[-1][1], architecture) if known else None
        folder = self._folder / which
        if not (folder / GUARD).is_file():
            raise CheckpointError(f"resume_from_checkpoint: {folder} is no complete checkpoint.")
        return read_checkpoint(folder, architecture)

    def _rotate(self) -> None:
        """Removes the oldest. The guard goes first, so that a half-removed one is never taken for complete."""
        if self._keep:
            for _, folder in self.complete()[: -self._keep]:
                (folder / GUARD).unlink()
                shutil.rmtree(folder)


def read_checkpoint(folder: Path, architecture: Architecture) -> Checkpoint:
    facts: dict[str, Any] = json.loads((folder / "training_state.json").read_text(encoding="utf-8"))
    if facts["architecture"] != dataclasses.asdict(architecture):
        raise CheckpointError(f"{folder} was made by another network: {facts['architecture']}.")
    state: dict[str, Floats] = {}
    for name in _FILES:
        with np.load(folder / name, allow_pickle=False) as arrays:
            state |= {vector: arrays[vector] for vector in arrays.files}
    return Checkpoint(step=facts["global_step"], seed=facts["seed"], state=state)


def npz(arrays: dict[str, Floats]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()
