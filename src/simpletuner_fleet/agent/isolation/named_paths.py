"""Checks the paths that a config names before anything runs, and refuses by name those that jobs may not see.

Behind its wall a job would only find that there is nothing, and its trainer would take the path for a name on the
Hub. Whether something exists beyond the wall is told to nobody: what is not there is refused in the same words.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from simpletuner_fleet.agent.isolation.path_access import PathAccess
from simpletuner_fleet.agent.isolation.places import lies_in
from simpletuner_fleet.core.worker_errors import PathNotGranted
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Launch

WRITTEN = re.compile(
    r"(?:^|_)(?:output|out|cache|logging|logs?|tmp|temp|tmpdir|save|home)(?:_|$)", re.IGNORECASE
)
"""Settings that name what the job makes itself: where its own empty folders do, nothing has to be there."""
JOBS_OWN = ("/tmp", "/var/tmp")
KERNELS = ("/dev", "/proc", "/sys")
"""The same names stand for the same things behind the wall, as far as they are for jobs."""
PATH_LIKE = re.compile(r"(?:/|~/)[^\s:/]+(?:/[^:/]+)*/?|~/")
"""Rather than a sentence, a pattern or a list of paths that happens to begin with a stroke."""
PATH_VARIABLE = re.compile(r"(?:^|_)(?:dir|path|home|cache|file|folder|root|data|model)s?$", re.IGNORECASE)
WORDS_OF_A_COMMAND = ("command", "args")
"""Settings that hold words for a program; what they mean, only that program knows."""
OUTPUT = re.compile(r"settings\.(?:--)?output[_-]dir")


DATA = ("settings.", "dataloader")
"""What is named there is read as a whole; of a working folder who knows which part."""


class Named(NamedTuple):
    where: str
    path: str
    made_by_job: bool


def refuse_unseen(offer: JobSubmit, launch: Launch, access: PathAccess, own: list[Path], home: str) -> None:
    """Raises PathNotGranted for the first path that jobs cannot use. `own` are the attempt's own folders."""
    for named in _named(offer, launch):
        refuse_path(named, access, own, home)


def refuse_path(named: Named, access: PathAccess, own: list[Path], home: str) -> None:
    path = os.path.abspath(_expanded(named.path, home))
    if path == "/" or _lies_in(path, [*own, *KERNELS]):
        return
    if OUTPUT.fullmatch(named.where):
        _check_output(named.where, path, access)
    elif not named.made_by_job or not _lies_in(path, [*JOBS_OWN, *([home] if home else [])]):
        _check(named.where, path, access)


def _check(where: str, path: str, access: PathAccess) -> None:
    if not access.sees(path):
        raise PathNotGranted(
            f"{where} names {path}, which is not on this worker or not granted to jobs: its owner can grant it with "
            f"'simpletuner worker --job-path {shlex.quote(path)}:ro'."
        )
    locked = access.unreadable(path, with_content=where.startswith(DATA))
    if locked:
        raise PathNotGranted(
            f"{where} names {path}, which is granted to jobs, but {locked} may not be read by jobs: they run as users "
            f"of their own here. Its owner can open it with 'chmod -R a+rX {shlex.quote(path)}'."
        )


def _check_output(where: str, path: str, access: PathAccess) -> None:
    if not access.grants_writing(path):
        raise PathNotGranted(
            f"{where} names {path}, which is not granted to jobs for writing: its owner can grant it with "
            f"'simpletuner worker --job-path {shlex.quote(path)}:rw'. Without a full path the output is kept as well."
        )


def _named(offer: JobSubmit, launch: Launch) -> Iterator[Named]:
    yield from _within("settings", offer.config)
    yield from _within("dataloader", offer.dataloader)
    named = {name: value for name, value in offer.env.items() if PATH_VARIABLE.search(name)}
    yield from _within("env", named)
    yield Named("the working folder", launch.cwd, made_by_job=False)
    if launch.argv and os.path.isabs(launch.argv[0]) and "\0" not in launch.argv[0]:
        yield Named("the command", launch.argv[0], made_by_job=False)


def _within(where: str, value: Any, key: str = "") -> Iterator[Named]:
    if isinstance(value, dict):
        for name, item in value.items():
            if name not in WORDS_OF_A_COMMAND:
                yield from _within(f"{where}.{name}", item, str(name))
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _within(f"{where}[{at}]", item, key)
    elif isinstance(value, str) and PATH_LIKE.fullmatch(value) and "\0" not in value:
        yield Named(where, value, bool(WRITTEN.search(key.replace("-", "_"))))


def _lies_in(path: str, folders: Iterable[str | Path]) -> bool:
    return any(lies_in(path, str(folder)) for folder in folders)


def _expanded(path: str, home: str) -> str:
    return home + path[1:] if path.startswith("~/") and home else path
