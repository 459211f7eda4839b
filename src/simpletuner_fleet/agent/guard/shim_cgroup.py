"""Manages the attempt's control group (cgroup v2). It is part of the shim: standard library only.

The agent makes the group and sets its limits; the trainer enters it before it is executed. Whatever it does to its
session, its parents or its environment, each of its processes stays in there, and one write ends them all.
"""

from __future__ import annotations

import errno
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

NAME_FILE = "cgroup"
"""In the attempt's folder: which group is its own. Whoever finds the attempt again ends what is left of it by that."""
SPARE = "spare-"
EMPTY_WITHIN_S = 10.0
LOOK_S = 0.01


def group_name(attempt_id: str, worker: int | None = None) -> str:
    """Names it by a number of its worker, too: two nodes of one worker may be on one machine, each with its own part."""
    return f"job-{attempt_id}" if worker is None else f"job-{attempt_id}-{worker:08x}"


def spare_name(folder: str) -> str:
    """Names the group of whichever attempt the folder of a spare becomes."""
    return f"{SPARE}{folder}"


def may_be_of(attempt_id: str, group: str) -> bool:
    """Returns whether a note of the attempt may name this group: its own, or the one that a spare had entered for it."""
    own = group_name(attempt_id)
    return group in (own, f"{own}-{group[-8:]}") or group.startswith(SPARE)


def join(group: str) -> None:
    """Runs in the process that is to be in there, before it gives up its rights."""
    _write(f"{group}/cgroup.procs", "0")


def end_all(group: str) -> bool:
    """Kills every process in it at once, also those that are just being forked; False where there is no such group."""
    try:
        _write(f"{group}/cgroup.kill", "1")
    except OSError:
        return False
    return True


def is_populated(group: str) -> bool:
    """Returns whether anything is in there, or may be: whoever has no descriptor to look with has seen nothing."""
    try:
        with open(f"{group}/cgroup.events", encoding="ascii") as file:
            return "populated 1" in file.read()
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


def remove(group: str, within_s: float = EMPTY_WITHIN_S) -> bool:
    """Ends what is in there and takes the group away; True once it is gone. Waits for what the kernel has not ended yet."""
    give_up_at = time.monotonic() + within_s
    while os.path.isdir(group):
        end_all(group)
        for folder in _from_below(group):
            try:
                os.rmdir(folder)
            except OSError:
                break
        if time.monotonic() > give_up_at:
            return not os.path.isdir(group)
        if os.path.isdir(group):
            time.sleep(LOOK_S)
    return True


def limit_reached(group: str, ended_well: bool) -> str | None:
    """Says by which limit of the group a trainer ended that did not end well; None by none."""
    if ended_well:
        return None
    if _counts(f"{group}/memory.events").get("oom_kill", 0):
        gigabytes = _limit(f"{group}/memory.max") / 1e9
        return f"the job reached the memory limit of its worker, {gigabytes:.1f} GB (--job-memory-gb)"
    if _counts(f"{group}/pids.events").get("max", 0):
        return (
            f"the job reached the process limit of its worker, {_limit(f'{group}/pids.max')} processes and threads "
            "(--job-pids)"
        )
    return None


def _limit(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _counts(path: str) -> dict[str, int]:
    try:
        with open(path, encoding="ascii") as file:
            pairs = [line.split() for line in file]
        return {name: int(count) for name, count in pairs}
    except (OSError, ValueError):
        return {}


def _from_below(group: str) -> Iterator[str]:
    for folder, _, _ in os.walk(group, topdown=False):
        yield folder


def _write(path: str, text: str) -> None:
    """Never makes a file: what is missing in a real group cannot be made, and elsewhere would be taken for one."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
