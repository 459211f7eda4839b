"""Finds checkpoints of trainers that do not mark a finished one: it is whole once nothing is written to it any more."""

import errno
import time
from collections.abc import Callable
from pathlib import Path

from simpletuner_fleet.trainers.checkpoints import GUARD, FoundCheckpoint, checkpoint_folders, files_beneath

SETTLED_S = 5.0
"""So long nothing has changed; the trainer's slowest pause between two files of a checkpoint was 0.2 s."""
STATE_FILES = "training_state*.json"
LAST_STATE = "random_states_0.pkl"
"""Written after weights and optimizer: without it the trainer was stopped while it saved."""
PASSING = frozenset({errno.ENOENT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What keeps somebody from looking for a moment only."""

Clock = Callable[[], float]


def settled_checkpoints(folder: Path, now: Clock = time.time) -> list[FoundCheckpoint]:
    """Returns those that are whole, oldest first."""
    folders = checkpoint_folders(folder)
    return [one for at, one in enumerate(folders) if _is_whole(one, folders[at + 1 :], now())]


def has_unsettled(folder: Path, now: Clock = time.time) -> bool:
    """Tells whether there is one that only time keeps from being whole."""
    folders = checkpoint_folders(folder)
    whole = settled_checkpoints(folder, now)
    return any(one not in whole and _has_state(one.path) for one in folders)


def _is_whole(one: FoundCheckpoint, later: list[FoundCheckpoint], now: float) -> bool:
    if (one.path / GUARD).is_file():
        return True
    if not _has_state(one.path):
        return False
    return any(other.step > one.step for other in later) or _is_still(one.path, now)


def _has_state(path: Path) -> bool:
    return (path / LAST_STATE).is_file() and any(path.glob(STATE_FILES))


def _is_still(path: Path, now: float) -> bool:
    """Returns whether nothing changed lately.

    A time in the future, as another machine's clock may write it, counts like one in the past. What can never be looked
    at, such as a link to itself, is not waited for: whoever sends the checkpoint says why it cannot be sent.
    """
    try:
        changes = [file.stat().st_mtime for file in files_beneath(path, path)]
    except OSError as error:
        return error.errno not in PASSING
    return all(abs(now - changed) >= SETTLED_S for changed in changes)
