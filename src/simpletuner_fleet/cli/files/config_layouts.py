"""Finds the main file of a config in the layouts in which people keep what they train with.

These are a folder with a main file in it, the trainer's own `config/` and `config/NAME/`, one file, or the bare NAME
that the trainer itself would look for beneath `config/`.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from simpletuner_fleet.cli.frame.errors import ExitCode, fail
from simpletuner_fleet.languages import _

MAIN_FILES = ("config.json", "config.toml", "config.env")
"""In the order in which the trainer prefers them."""
CONFIG_FOLDER = "config"
ENDINGS = (".json", ".toml", ".env")


class Layout(Struct, frozen=True):
    main: Path
    whole_folder: bool
    """Its neighbours belong to it."""
    name: str
    """What the config is called where nobody says otherwise."""


def looks_like_path(text: str) -> bool:
    return "/" in text or "\\" in text or text.endswith(ENDINGS) or text in (".", "..")


def find_layout(path: str) -> Layout:
    place = Path(os.path.expanduser(path))  # a user whom nobody knows here is left as written
    if not place.exists() and "/" not in path and (Path(CONFIG_FOLDER) / path).is_dir():
        place = Path(CONFIG_FOLDER) / path
    if place.is_dir():
        main = _main_file(place)
        own = place if main.parent in (place, place / CONFIG_FOLDER) else main.parent
        return Layout(main, True, plain_name(own.resolve().name))
    own = place.resolve()
    return Layout(place, False, plain_name(own.parent.name if own.name in MAIN_FILES else own.stem))


def plain_name(text: str) -> str:
    """Replaces the characters that a name must not have."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:128] or "config"


def _main_file(folder: Path) -> Path:
    for file in _mains_in(folder, folder / CONFIG_FOLDER):
        return file
    several = list(_mains_in(*_inner(folder), *_inner(folder / CONFIG_FOLDER)))
    if len(several) == 1:
        return several[0]
    if several:
        raise fail(
            _("%(folder)s contains several configs", folder=folder),
            ", ".join(sorted(str(file.parent.relative_to(folder)) for file in several)),
            _("name the one you mean"),
            "E_CONFIG_FILE",
            ExitCode.USAGE,
        )
    raise fail(
        _("there is no config in %(folder)s", folder=folder),
        _(
            "looked for %(names)s here, in config/ and in config/NAME/",
            names=", ".join(MAIN_FILES),
        ),
        _("verify the path"),
        "E_CONFIG_FILE",
        ExitCode.NOT_FOUND,
    )


def _mains_in(*folders: Path) -> Iterator[Path]:
    """Yields the main file of each folder that has one."""
    for folder in folders:
        file = next((folder / name for name in MAIN_FILES if (folder / name).is_file()), None)
        if file:
            yield file


def _inner(folder: Path) -> list[Path]:
    return sorted(inner for inner in folder.iterdir() if inner.is_dir()) if folder.is_dir() else []
