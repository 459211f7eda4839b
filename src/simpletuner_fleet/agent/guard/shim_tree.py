"""Finds and signals processes. It is part of the shim: standard library only, like all its parts."""

from __future__ import annotations

import contextlib
import errno
import os

NOT_SEEN = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Whoever meets these has seen nothing, which is not to say that nothing is there."""


def stat_fields(pid: int) -> list[bytes]:
    """Returns the fields of /proc/<pid>/stat from the state on; the name before it may hold anything."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def start_ticks(pid: int) -> int | None:
    try:
        return int(stat_fields(pid)[19])
    except (OSError, IndexError):
        return None


def descendants(root: int) -> list[int]:
    """Returns every living process below `root`; as its subreaper it is an ancestor of double-forked ones too.

    Raises OSError where it cannot look.
    """
    children: dict[int, list[int]] = {}
    try:
        names = os.listdir("/proc")
    except OSError as error:
        if error.errno in NOT_SEEN:
            raise
        return []
    for name in names:
        if name.isdigit():
            try:
                fields = stat_fields(int(name))
            except OSError as error:
                if error.errno in NOT_SEEN:
                    raise
                continue
            if len(fields) > 1 and fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append(int(name))
    pids: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        pids += below
        todo += below
    return pids


def send_signal(pid: int, number: int) -> None:
    """Sends it to a process, or to a whole group where the number is negative."""
    with contextlib.suppress(OSError):
        os.kill(pid, number)
