"""Decides which attempt folders a worker keeps: the newest few while there is room, and all that is not stored yet."""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from simpletuner_fleet.agent.guard.orphans import end_group
from simpletuner_fleet.agent.state_dir import DELIVERED, AttemptDir, StateDir
from simpletuner_fleet.core.worker_errors import StateDirError
from simpletuner_fleet.trainers.job_files import LACKING

log = logging.getLogger(__name__)
T = TypeVar("T")

NOT_STORED = "not-stored"
"""Something of it could not be sent: its folder is the only place where that is."""
GIB = 2**30
ROOM = "room"
ROOM_BYTES, ROOM_FILES = 64 * 1024, 64
"""What the trial of a wall writes is less."""
LOOK_FOR_ROOM_S = 10.0
DAY_S = 86_400.0


class KeepLimits(Struct, frozen=True, kw_only=True):
    attempts: int = 20
    """The newest so many stay."""
    days: float = 7.0
    """And none that ended longer ago."""
    free_gb: float = 20.0
    """With less room than this on the disk, the oldest go first, however new; a tenth of a small disk is enough."""
    tidy_every_s: float = 60.0


class EndedFolder(Struct, frozen=True):
    """Describes the folder of an ended attempt for which nothing is owed any more."""

    name: str
    ended_at: float


def choose(folders: Sequence[EndedFolder], limits: KeepLimits, now: float) -> list[str]:
    """Returns the folders to remove for their age or their number, the oldest first."""
    oldest_first = sorted(folders, key=lambda one: one.ended_at)
    too_many = max(0, len(oldest_first) - limits.attempts)
    return [
        one.name
        for place, one in enumerate(oldest_first)
        if place < too_many or now - one.ended_at > limits.days * DAY_S
    ]


def tidy(state: StateDir, limits: KeepLimits, in_use: Collection[str]) -> list[str]:
    """Removes what may go and returns its names. `in_use` are attempts that this agent holds. Blocks for the disk."""
    folders = [
        EndedFolder(attempt.attempt_id, _ended_at(attempt))
        for attempt in state.attempts()
        if attempt.attempt_id not in in_use and may_go(attempt)
    ]
    chosen = choose(folders, limits, time.time())
    gone = [name for name in chosen if removed(state, name)]
    left = sorted((one for one in folders if one.name not in chosen), key=lambda one: one.ended_at)
    for one in left:
        if not is_short(state, limits):
            break
        if removed(state, one.name):
            gone.append(one.name)
    if gone:
        log.info("removed the folders of %d attempts that are stored or not wanted any more", len(gone))
    return gone


async def with_disk_room(
    state: StateDir,
    limits: KeepLimits,
    act: Callable[[], T],
    *,
    waits: bool = False,
    look_every_s: float = LOOK_FOR_ROOM_S,
) -> T:
    """Does what a start needs room on the disk for. Removes what may go where that is short.

    Raises StateDirError where there is no room all the same: a wall that cannot be tried for want of room must not be
    taken for one that this machine does not allow. Whoever `waits` goes on once there is room.
    """
    said = ""
    while True:
        try:
            return await asyncio.to_thread(_with_disk_room, state, limits, act)
        except StateDirError as error:
            cause = error.__cause__
            if not (waits and isinstance(cause, OSError) and cause.errno in LACKING):
                raise
            if error.detail != said:
                log.error("%s The worker waits until there is room. %s", error.detail, error.next)
                said = error.detail
        await asyncio.sleep(look_every_s)


def _with_disk_room(state: StateDir, limits: KeepLimits, act: Callable[[], T]) -> T:
    room = state.path / ROOM
    with _naming_folder(state):
        room.unlink(missing_ok=True)
        if is_short(state, limits):
            tidy(state, limits, ())
        _try_room(room)
        room.unlink()
    done = act()
    with _naming_folder(state):
        _try_room(room)  # somebody may have filled the disk meanwhile
    return done


@contextmanager
def _naming_folder(state: StateDir) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateDirError(
            f"The state folder {state.path} cannot be used: {error.strerror}.",
            next_step="Free space on its disk, or choose another folder with --work-dir.",
        ) from error


def _try_room(room: Path) -> None:
    """Leaves a file of some size: where the disk is full by the next start, its space is what that has."""
    files = room.with_suffix(".files")
    try:
        room.write_bytes(bytes(ROOM_BYTES))
        files.mkdir(exist_ok=True)
        for number in range(ROOM_FILES):
            (files / str(number)).touch()
    except OSError:
        room.unlink(missing_ok=True)
        raise
    finally:
        shutil.rmtree(files, ignore_errors=True)


def removed(state: StateDir, name: str) -> bool:
    """Removes a folder; one that cannot be removed keeps no other from it."""
    try:
        end_group(state.attempt(name).path)
        state.remove_attempt(name)
    except OSError as error:
        log.warning("the folder of attempt %s could not be removed: %s", name, error)
        return False
    return True


def may_go(attempt: AttemptDir) -> bool:
    return (attempt.path / DELIVERED).exists() and not (attempt.path / NOT_STORED).exists()


def is_short(state: StateDir, limits: KeepLimits) -> bool:
    usage = shutil.disk_usage(state.path)
    return usage.free < min(limits.free_gb * GIB, usage.total / 10)


def _ended_at(attempt: AttemptDir) -> float:
    try:
        return os.stat(attempt.path / DELIVERED).st_mtime
    except OSError:
        return time.time()
