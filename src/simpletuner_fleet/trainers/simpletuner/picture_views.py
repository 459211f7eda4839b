"""Shows folders of pictures that SimpleTuner may only read in a place where it may write.

It keeps its index of each folder of pictures within that folder, and ends where it cannot. So it gets a folder of its
own with a link to every picture, in what is kept for the next attempt of the same config: the index is found again
there.
"""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.job_trees import entries_beneath, make_folder, remove_tree

FOLDER = "instance_data_dir"
INDEX = "aspect_ratio_bucket_"
"""How the names of the trainer's own indices begin: another's would name the pictures by other paths."""
VIEWS = "pictures"


def show_pictures(paths: Paths, may_write: Callable[[str], bool]) -> None:
    """Points the dataloader, as it was written, to such folders."""
    if paths.cache_dir is None:
        return
    try:
        backends: Any = msgspec.json.decode(paths.dataloader_file.read_bytes())
    except (OSError, ValueError):
        return
    shown = (
        [_shown(backend, paths, may_write) for backend in backends]
        if isinstance(backends, list)
        else backends
    )
    if shown != backends:
        paths.dataloader_file.write_bytes(msgspec.json.format(msgspec.json.encode(shown), indent=2))


def _shown(backend: Any, paths: Paths, may_write: Callable[[str], bool]) -> Any:
    folder = backend.get(FOLDER) if isinstance(backend, dict) else None
    if not isinstance(folder, str) or not os.path.isabs(folder) or not os.path.isdir(folder):
        return backend
    own = [path for path in (paths.attempt_dir, paths.cache_dir) if path]
    if any(Path(folder).is_relative_to(path) for path in own) or may_write(folder):
        return backend
    view = Path(paths.cache_dir or "") / VIEWS / _name(folder)
    _lay_out(Path(folder), view)
    return {**backend, FOLDER: str(view)}


def _name(folder: str) -> str:
    """Returns the folder's own name, for whoever reads it in an error, and what tells it from others of that name."""
    digest = hashlib.sha256(folder.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    return f"{re.sub(r'[^A-Za-z0-9._-]', '_', Path(folder).name)[:40]}-{digest}"


def _lay_out(folder: Path, view: Path) -> None:
    """Makes real folders, because a search follows no links to some; links of earlier attempts are made anew."""
    _take_links_out(view)
    for parent, folders, names in os.walk(folder):
        target = view / Path(parent).relative_to(folder)
        make_folder(target)
        linked = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in (*names, *linked):
            if not name.startswith(INDEX):
                _link(os.path.join(parent, name), target / name)


def _link(picture: str, link: Path) -> None:
    try:
        os.symlink(picture, link)
    except FileExistsError:  # an earlier attempt has put something in its place
        remove_tree(link)
        os.symlink(picture, link)


def _take_links_out(view: Path) -> None:
    if not view.is_dir() or view.is_symlink():
        return
    for entry in entries_beneath(view):
        if entry.is_symlink():
            os.unlink(entry.path)
