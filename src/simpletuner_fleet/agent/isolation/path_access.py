"""Tells which paths jobs see behind their wall, which they may write, and which their user may not read."""

import contextlib
import os
import stat
from collections.abc import Sequence
from itertools import islice

from msgspec import Struct

from simpletuner_fleet.agent.isolation.places import RANK, SYSTEM, Access, Place, depth, lies_in
from simpletuner_fleet.trainers.job_trees import entries_beneath

LOOKED_AT = 5_000
"""So many entries of a folder tell whether the rest of it can be read: nobody locks a single picture of a million."""

FOLDER_FOR_ALL = stat.S_IROTH | stat.S_IXOTH


class PathAccess(Struct, frozen=True):
    places: Sequence[Place]
    own_user: bool
    """Jobs run as users of their own, to whom permissions of files apply as to anybody."""

    def sees(self, path: str) -> bool:
        return self._access(path) is not None

    def grants_writing(self, path: str) -> bool:
        return self._access(path) == "rw"

    def may_write(self, path: str) -> bool:
        return self.grants_writing(path) and (not self.own_user or bool(_mode(path) & stat.S_IWOTH))

    def unreadable(self, path: str, *, with_content: bool) -> str | None:
        """Returns what of a path that is granted the jobs' user may not read; None where nothing was found.

        What lies in a folder that is closed to it may be there or not: the answer is the folder's name.
        """
        if not self.own_user:
            return None
        real = os.path.realpath(path)
        root = self._root_of(real)
        for parent in _parents(real):
            if lies_in(parent, root) and os.path.exists(parent) and not _mode(parent) & stat.S_IXOTH:
                return parent
        return _locked(real, with_content) if os.path.exists(real) else None

    def _access(self, path: str) -> Access | None:
        """Returns the access to a path. A link must be visible itself, and lead to where its target is granted.

        Links of the system's root are visible.
        """
        named, real = os.path.abspath(path), os.path.realpath(path)
        access = self._deepest(real)[0]
        of_system = any(lies_in(named, folder) for folder in SYSTEM)
        if access is None or (self._deepest(named)[0] is None and not of_system):
            return None
        return access

    def _root_of(self, real: str) -> str:
        return self._deepest(real)[1]

    def _deepest(self, path: str) -> tuple[Access | None, str]:
        holding = [place for place in self.places if lies_in(path, place[1])]
        deepest = max(holding, key=lambda place: (depth(place[1]), RANK[place[2]]), default=None)
        if deepest is None or deepest[2] == "hide":
            return None, ""
        return deepest[2], deepest[1]


def _parents(path: str) -> list[str]:
    """Returns the folders that a real path lies in, the outermost first."""
    parents = []
    while (parent := os.path.dirname(path)) != path:
        parents.append(parent)
        path = parent
    return parents[::-1]


def _locked(path: str, with_content: bool) -> str | None:
    """Returns the path, or the first one in that folder, that is not for everybody."""
    if not os.path.isdir(path):
        return None if _mode(path) & stat.S_IROTH else path
    if _mode(path) & FOLDER_FOR_ALL != FOLDER_FOR_ALL:
        return path
    with contextlib.suppress(OSError):  # closed to the worker as well, or as deep as only a job makes it
        for entry in islice(entries_beneath(path) if with_content else (), LOOKED_AT):
            needed = FOLDER_FOR_ALL if entry.is_dir(follow_symlinks=False) else stat.S_IROTH
            if (entry.is_dir(follow_symlinks=False) or entry.is_file()) and _mode(
                entry.path
            ) & needed != needed:
                return entry.path
    return None


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except OSError:
        return 0
