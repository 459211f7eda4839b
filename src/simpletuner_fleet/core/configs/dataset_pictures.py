"""Finds the pictures of a dataset that people can look at, and the caption file that belongs to each.

Paths and contents are whatever somebody pushed: nothing here trusts them, and a picture is one by its name only until its
bytes have been looked at.
"""

from collections.abc import Sequence
from enum import StrEnum

from msgspec import Struct

from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.core.training.samples import is_picture

CAPTION_ENDINGS = (".txt", ".caption")
"""What trainers read beside `cat.png`: `cat.txt`, or `cat.caption`."""
CAPTION_BYTES = 2_000
"""How much of a caption is shown."""
UNFINISHED_LETTER_BYTES = 3
"""A letter of UTF-8 that was cut has left at most so many bytes."""


class DatasetPicture(Struct, frozen=True):
    file: FileEntry
    caption: FileEntry | None
    """The file that describes it, if there is one."""


class DatasetPart(StrEnum):
    PICTURES = "pictures"
    UNCAPTIONED = "uncaptioned"
    FILES = "files"


class DatasetListing(Struct, frozen=True, kw_only=True):
    """Lists the files of one dataset, ordered by path."""

    files: tuple[FileEntry, ...]
    pictures: tuple[DatasetPicture, ...]
    uncaptioned: tuple[DatasetPicture, ...]

    def part(self, part: DatasetPart) -> Sequence[DatasetPicture] | Sequence[FileEntry]:
        match part:
            case DatasetPart.PICTURES:
                return self.pictures
            case DatasetPart.UNCAPTIONED:
                return self.uncaptioned
            case DatasetPart.FILES:
                return self.files


def listing_of(files: Sequence[FileEntry]) -> DatasetListing:
    by_path = {file.path: file for file in files}
    pictures = tuple(
        DatasetPicture(file, _caption_beside(file.path, by_path)) for file in files if is_picture(file.path)
    )
    return DatasetListing(
        files=tuple(files),
        pictures=pictures,
        uncaptioned=tuple(one for one in pictures if one.caption is None),
    )


def _caption_beside(path: str, by_path: dict[str, FileEntry]) -> FileEntry | None:
    stem = path.rpartition(".")[0]
    return next((by_path[stem + end] for end in CAPTION_ENDINGS if stem + end in by_path), None)


def caption_text(content: bytes, size: int) -> str:
    """Returns what can be shown of a caption of `size` bytes that begins with `content`, in one line."""
    text = content.decode("utf-8", "replace")
    if size > len(content):
        # The letter at the cut is nobody's mistake.
        text = text[:-UNFINISHED_LETTER_BYTES].rstrip("\ufffd") + "…"
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()
