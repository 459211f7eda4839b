"""Lists what a job may see and write: folders of the system, of the trainer's Python, and what the owner grants."""

import json
import logging
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

log = logging.getLogger(__name__)

Access = Literal["ro", "rw", "hide", "room"]
Place = tuple[str, str, Access]
"""From where, to where, and how."""
SYSTEM = ("/usr", "/etc", "/opt", "/nix", "/sys", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
SYSTEM_FILES = ("/etc/resolv.conf", "/etc/hosts", "/etc/localtime", "/run/nvidia-persistenced")
"""Which are often links to where nothing else is granted."""
KEPT_BY_SERVICES = "/etc/simpletuner"
ASKS_PYTHON_S = 30.0
WHERE = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path]))"
RANK: dict[Access, int] = {"ro": 0, "rw": 1, "hide": 2, "room": 3}


class JobPath(Struct, frozen=True):
    """Names a folder or file that the worker's owner grants to jobs."""

    path: str
    writable: bool


def system_places() -> list[Place]:
    folders = [path for path in SYSTEM if os.path.isdir(path) and not os.path.islink(path)]
    files = [os.path.realpath(path) for path in SYSTEM_FILES if os.path.exists(path)]
    return [(path, path, "ro") for path in dict.fromkeys([*folders, *files])]


def python_places(pythons: Iterable[str], environment: dict[str, str]) -> list[Place]:
    """Returns where these interpreters have their modules; nothing of one that cannot be asked."""
    places: list[Place] = []
    for python in dict.fromkeys(pythons):
        for path in _asked(python, environment):
            places += seen_at(path, "ro")
    return places


def seen_at(path: str, access: Access) -> list[Place]:
    """Returns a path under the name it was given, and under its real one, to which links within it may lead."""
    real = os.path.realpath(path)
    return [(real, name, access) for name in dict.fromkeys([real, os.path.abspath(path)])]


def granted_places(grants: Iterable[JobPath]) -> list[Place]:
    return [place for grant in grants for place in seen_at(grant.path, "rw" if grant.writable else "ro")]


def lies_in(path: str, folder: str) -> bool:
    """Compares the names as they are written, which is faster than a `Path`: each start asks hundreds of times."""
    return path == folder or path.startswith(folder if folder.endswith("/") else f"{folder}/")


def in_order(places: Iterable[Place]) -> list[Place]:
    """Sorts places by depth, since the deeper says more; what hides a place comes after what may be written."""
    return sorted(set(places), key=lambda place: (depth(place[1]), RANK[place[2]], place))


def depth(path: str) -> int:
    """Returns the depth of a path as `os.path.abspath` writes it."""
    return 0 if path == "/" else path.count("/")


def without_hidden(places: Sequence[Place]) -> list[Place]:
    """Returns the same by rules that can only allow: what lies around a hidden folder is allowed piece by piece."""
    hidden = [os.path.realpath(target) for _, target, access in places if access == "hide"]
    open_places = [place for place in places if place[2] != "hide"]
    return [
        (piece, piece, access)
        for source, _, access in open_places
        for piece in pieces_around(source, [path for path in hidden if os.path.exists(path)])
    ]


def pieces_around(path: str, hidden: Sequence[str]) -> Iterator[str]:
    within = [one for one in hidden if Path(one).is_relative_to(path)]
    if not within:
        yield path
        return
    if path in within:
        return
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return
    for name in names:
        piece = os.path.join(path, name)
        if not os.path.islink(piece):
            yield from pieces_around(piece, within)


def _asked(python: str, environment: dict[str, str]) -> list[str]:
    try:
        answer = subprocess.run(
            [python, "-c", WHERE],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASKS_PYTHON_S,
            check=True,
        )
        paths = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.warning("%s does not tell where its modules are: %s", python, error)
        return []
    return [path for path in paths if os.path.isabs(path) and path != "/" and os.path.exists(path)]
