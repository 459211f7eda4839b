"""Changes the paths of pictures in a SimpleTuner checkpoint to where the pictures lie on this worker.

A checkpoint names every picture by its whole path, and another worker has the pictures elsewhere. SimpleTuner 4.10.1
ends at the first step where it meets a path that it does not know.
"""

import os
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.job_files import read_job_file, replace_job_file
from simpletuner_fleet.trainers.simpletuner.picture_views import FOLDER

STATE = "training_state-"
LOOKED_AT = 50
"""Some pictures may be gone since; one that is found says where all of them are."""


def follow_pictures(paths: Paths, output: Path) -> None:
    """Changes, in every checkpoint in `output`, the lists of pictures of each dataset to the folder it has now."""
    try:
        backends: Any = msgspec.json.decode(paths.dataloader_file.read_bytes())
    except (OSError, ValueError):
        return
    for backend in backends if isinstance(backends, list) else []:
        folder, name = (backend.get(FOLDER), backend.get("id")) if isinstance(backend, dict) else (None, None)
        if isinstance(folder, str) and os.path.isabs(folder) and isinstance(name, str) and "/" not in name:
            for file in output.glob(f"checkpoint-*/{STATE}*.json"):
                if file.stem.removeprefix(STATE) == name:
                    _follow(file, folder.rstrip("/"))


def _follow(file: Path, folder: str) -> None:
    try:
        state: Any = msgspec.json.decode(read_job_file(file))
        before = _former_folder(list(_pictures(state)), folder)
    except (OSError, ValueError, RecursionError):
        return  # the trainer says best what is wrong with it
    if before is None:
        return
    replace_job_file(file, msgspec.json.encode(_moved(state, f"{before}/", f"{folder}/")))


def _pictures(state: Any) -> Iterator[str]:
    for value in state.values() if isinstance(state, dict) else state if isinstance(state, list) else ():
        yield from _pictures(value)
    if isinstance(state, dict):
        yield from (key for key in state if posixpath.isabs(key))
    if isinstance(state, list):
        yield from (value for value in state if isinstance(value, str) and posixpath.isabs(value))


def _former_folder(pictures: list[str], folder: str) -> str | None:
    """Returns what must have been this folder, as what lay in it lies here; None where nothing needs to be changed."""
    if not pictures or all(path.startswith(f"{folder}/") for path in pictures):
        return None
    common = posixpath.commonpath(posixpath.dirname(path) for path in pictures)
    while common != "/":
        looked_at = (path for path in pictures[:LOOKED_AT] if path.startswith(f"{common}/"))
        if any(os.path.lexists(folder + path[len(common) :]) for path in looked_at):
            return common
        common = posixpath.dirname(common)
    return None


def _moved(value: Any, before: str, now: str) -> Any:
    if isinstance(value, dict):
        return {_moved(key, before, now): _moved(item, before, now) for key, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, before, now) for item in value]
    if isinstance(value, str) and value.startswith(before):
        return now + value[len(before) :]
    return value
