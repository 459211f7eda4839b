"""Handles pictures that a training draws as it goes: how they are recognized and ordered, and which are kept."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from simpletuner_fleet.core.training.checkpoint import FileEntry, Manifest, StoredManifest

SAMPLES = "samples"
"""The artifact that holds them, and grows while the job runs."""
ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
MAX_BYTES = 32 * 1024 * 1024
MOST = 64
_STEP = re.compile(r"steps?[-_. =]*(\d{1,15})(?!\d)", re.ASCII | re.IGNORECASE)
_DRAWN = re.compile(
    r"(?:(?P<before>.*?)[-_. ]*)?\bsteps?[-_. =]*\d{1,15}(?:[-_. ]+(?P<after>.+?))?$",
    re.ASCII | re.IGNORECASE,
)
_SIZE = re.compile(r"(?:^|[-_. ])(\d{2,5}x\d{2,5})$", re.ASCII)
_INDEX = re.compile(r"(?:^|[-_. ])(\d{1,4})$", re.ASCII)
_NUMBER = re.compile(r"(?<!\d)\d{1,15}(?!\d)", re.ASCII)


HEAD_BYTES = 16
"""So many bytes of a file say what it is."""


def picture_type(head: bytes) -> str | None:
    """Returns the type by the bytes, never by the name: a page or a script must not be served as a picture."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return None


def is_picture(path: str) -> bool:
    return path.lower().endswith(ENDINGS)


def step_in(path: str) -> int | None:
    """Returns the step that a picture's name, or its folder's, tells: `step_200_cat_0_1024x1024.png` is of step 200."""
    numbers = _STEP.findall(path)
    return int(numbers[-1]) if numbers else None


class Caption(NamedTuple):
    """Holds what a picture's name tells besides its step.

    Pictures that differ in their step alone show the progress of one subject.
    """

    prompt: str = ""
    """The trainer's short name of the prompt."""
    number: int = 0
    """Which of several that were drawn of one prompt at once."""
    size: str = ""


def caption_in(path: str) -> Caption:
    """Reads a picture's name: `step_200_cat_0_1024x1024.png` is the first of the prompt `cat`, 1024x1024."""
    stem = path.rpartition("/")[2].rpartition(".")[0]
    drawn = _DRAWN.match(stem.replace("_", " "))
    rest = (drawn["after"] or drawn["before"] or "") if drawn else stem.replace("_", " ")
    size = _SIZE.search(rest)
    rest = rest[: size.start()] if size else rest
    number = _INDEX.search(rest)
    rest = rest[: number.start()] if number else rest
    return Caption(
        rest.strip(" -_.").replace(" ", "_"), int(number[1]) if number else 0, size[1] if size else ""
    )


def drawn_order(path: str, step: int | None = None) -> tuple[int, int, str]:
    """Returns a sort key: the step in the name, or else `step`, then the first number in the path."""
    own_step = step_in(path)
    number = _NUMBER.search(path)
    return (step or 0 if own_step is None else own_step, int(number[0]) if number else 0, path)


def with_earlier(manifest: Manifest, known: Sequence[StoredManifest]) -> Manifest:
    """Keeps the earlier pictures as far as there is room: an attempt that moves has an empty folder."""
    if (manifest.kind, manifest.name) != ("artifact", SAMPLES):
        return manifest
    kept: list[FileEntry] = []
    paths = {file.path for file in manifest.files}
    for file in _earlier(known):
        if len(manifest.files) + len(kept) < MOST and not _in_the_way(file.path, paths):
            kept.append(file)
            paths.add(file.path)
    return replace(manifest, files=(*manifest.files, *kept)) if kept else manifest


def _earlier(known: Sequence[StoredManifest]) -> list[FileEntry]:
    """Returns the pictures of the newest stored manifest, the last drawn first."""
    stored = [one for one in known if (one.kind, one.name) == ("artifact", SAMPLES)]
    newest = max(stored, key=lambda one: (one.epoch, one.created_at), default=None)
    files = [file for file in newest.files if is_picture(file.path)] if newest else []
    return sorted(files, key=lambda file: drawn_order(file.path), reverse=True)


def _in_the_way(path: str, paths: Iterable[str]) -> bool:
    """Tells whether a path is taken, or is a file where another path needs a folder."""
    return any(
        path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in paths
    )
