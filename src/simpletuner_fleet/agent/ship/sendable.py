"""Decides which of the files that a job has left can be stored at all. It blocks: call it in a thread."""

import os
from collections.abc import Sequence
from pathlib import Path

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.training.checkpoint import path_complaint

MOST_FILE_BYTES = Policy().max_object_bytes
HOLLOW_BYTES = 2**30
HOLLOW_SHARE = 64
"""A file is hollow that claims so many times what the disk holds of it. To read one takes hours and yields zeros."""
MOST_NAME_CHARS = 100


def sendable(root: Path, files: Sequence[Path]) -> tuple[list[Path], str]:
    """Returns the files that can be stored, and what is wrong with the others, '' where there are none."""
    complaints = {file: _complaint(root, file) for file in files}
    unfit = {file: complaint for file, complaint in complaints.items() if complaint}
    if not unfit:
        return list(files), ""
    first, why = next(iter(unfit.items()))
    name = ascii(first.relative_to(root).as_posix())[:MOST_NAME_CHARS]
    return [
        file for file in files if file not in unfit
    ], f"{len(unfit)} of its files cannot be stored, such as {name}: {why}"


def _complaint(root: Path, file: Path) -> str | None:
    if complaint := path_complaint(file.relative_to(root).as_posix()):
        return complaint
    facts = file.stat()
    if facts.st_size > MOST_FILE_BYTES:
        return f"One file may have at most {MOST_FILE_BYTES} bytes."
    if is_hollow(facts):
        return "There is next to nothing in it but holes."
    return None


def is_hollow(facts: os.stat_result) -> bool:
    return facts.st_size > HOLLOW_BYTES and facts.st_blocks * 512 * HOLLOW_SHARE < facts.st_size
