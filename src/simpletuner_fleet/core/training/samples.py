"""Pictures that a training draws on its way: which there are, how they are ordered, and how long they stay."""

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from simpletuner_fleet.core.training.checkpoint import FileEntry, Manifest, StoredManifest

SAMPLES = "samples"
"""The artifact that holds them, and grows while the job runs."""
ENDINGS = (".png", ".jpg", ".jpeg", ".webp")
MAX_BYTES = 32 * 1024 * 1024
MOST = 64
_STEP = re.compile(r"steps?[-_. =]*(\d{1,15})(?!\d)", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"(?<!\d)\d{1,15}(?!\d)", re.ASCII)


def is_picture(path: str) -> bool:
    return path.lower().endswith(ENDINGS)


def step_in(path: str) -> int | None:
    """The step that a picture's name, or a folder it lies in, tells: `step_200_cat_0_1024x1024.png` is of step 200."""
    numbers = _STEP.findall(path)
    return int(numbers[-1]) if numbers else None


def drawn_order(path: str, step: int | None = None) -> tuple[int, int, str]:
    """Rises with the step, where the name tells none with `step`, and then with the first number in it."""
    own_step = step_in(path)
    number = _NUMBER.search(path)
    return (step or 0 if own_step is None else own_step, int(number[0]) if number else 0, path)


def with_earlier(manifest: Manifest, known: Sequence[StoredManifest]) -> Manifest:
    """What was shown stays, as far as there is room: an attempt that goes on elsewhere has an empty folder."""
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
    """Returns them of the newest that is stored, the last drawn first."""
    stored = [one for one in known if (one.kind, one.name) == ("artifact", SAMPLES)]
    newest = max(stored, key=lambda one: (one.epoch, one.created_at), default=None)
    files = [file for file in newest.files if is_picture(file.path)] if newest else []
    return sorted(files, key=lambda file: drawn_order(file.path), reverse=True)


def _in_the_way(path: str, paths: Iterable[str]) -> bool:
    """One of the same place, or a file where the other needs a folder."""
    return any(
        path == other or path.startswith(f"{other}/") or other.startswith(f"{path}/") for other in paths
    )
