"""Walks and removes folders that jobs have written to.

A job makes them as deep as it likes, so nothing here is recursive.
"""

import contextlib
import errno
import itertools
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def entries_beneath(folder: str | Path, most: int | None = None) -> Iterator["os.DirEntry[str]"]:
    """Yields all of it in order, a folder before what it holds; no link is followed.

    Raises OSError where something cannot be listed: it is closed, its path is longer than the system takes, or there are
    more than `most`.
    """
    waiting, seen = [os.fspath(folder)], 0
    while waiting:
        with os.scandir(waiting.pop()) as listing:
            beginning = listing if most is None else itertools.islice(listing, most - seen + 1)
            entries = sorted(beginning, key=lambda entry: entry.name)
        seen += len(entries)
        if most is not None and seen > most:
            raise OSError(errno.EFBIG, "too many files to look at", os.fspath(folder))
        folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        yield from entries
        waiting.extend(reversed(folders))


def make_folder(folder: Path) -> None:
    """Makes the folder; something else that an earlier attempt may have left by that name goes."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        in_the_way = next(one for one in (*reversed(folder.parents), folder) if not one.is_dir())
        in_the_way.unlink()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def remove_tree(path: Path) -> None:
    """Removes as much of it as may be removed. No process that could write there may be left."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            _remove_deep(path)
        else:
            path.unlink(missing_ok=True)


def _remove_deep(top: Path) -> None:
    """Removes a deep tree. Each folder is moved up to the first one and removed there.

    So no path is long and few files are open.
    """
    first = os.open(top, FOLDER)
    try:
        waiting = [name for name, is_folder in _listed(first) if is_folder or _unlinked(name, first)]
        while waiting:
            name = waiting.pop()
            with contextlib.suppress(OSError):
                waiting += _emptied(name, first)
                os.rmdir(name, dir_fd=first)
    finally:
        os.close(first)
    top.rmdir()


def _emptied(name: str, first: int) -> list[str]:
    """Returns the folders that it held by the names that they have now."""
    _open_to_owner(name, first)
    folder = os.open(name, FOLDER, dir_fd=first)
    moved = []
    try:
        for entry, is_folder in _listed(folder):
            if is_folder:
                _open_to_owner(entry, folder)
                new = secrets.token_hex(16)
                os.rename(entry, new, src_dir_fd=folder, dst_dir_fd=first)
                moved.append(new)
            else:
                _unlinked(entry, folder)
    finally:
        os.close(folder)
    return moved


def _listed(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as listing:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in listing]


def _unlinked(name: str, folder: int) -> bool:
    """Returns False: there is no more to do about it."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
    return False


def _open_to_owner(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.chmod(name, 0o700, dir_fd=folder)
