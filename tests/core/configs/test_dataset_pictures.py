"""What of a dataset is shown: pictures, and what is written beside them."""

from simpletuner_fleet.core.configs.dataset_pictures import (
    CAPTION_BYTES,
    DatasetPart,
    caption_text,
    listing_of,
)
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.core.training.samples import picture_type


def files(*paths: str) -> list[FileEntry]:
    return [FileEntry(path=path, size=1, sha256=f"{at:064x}") for at, path in enumerate(sorted(paths))]


def test_a_caption_is_the_text_of_the_same_name_in_the_same_folder() -> None:
    listing = listing_of(
        files("a/1.png", "a/1.txt", "a/2.JPG", "a/2.caption", "a/3.webp", "b/3.txt", "4.png.txt", "x.svg")
    )
    captions = {one.file.path: one.caption and one.caption.path for one in listing.pictures}
    assert captions == {"a/1.png": "a/1.txt", "a/2.JPG": "a/2.caption", "a/3.webp": None}
    assert [one.file.path for one in listing.uncaptioned] == ["a/3.webp"]
    assert len(listing.part(DatasetPart.FILES)) == 8


def test_a_caption_is_shown_as_one_line_of_text_whatever_it_holds() -> None:
    assert caption_text(b"a cat\nin a hat\x00\xff ", 17) == "a cat in a hat \ufffd"
    whole = "猫".encode() * 1000
    shown = caption_text(whole[:CAPTION_BYTES], len(whole))
    assert set(shown) == {"猫", "…"}
    assert caption_text("é".encode(), 2) == "é"


def test_a_picture_is_one_by_its_bytes() -> None:
    assert picture_type(b"RIFF\x00\x00\x00\x00WEBPVP8 ") == "image/webp"
    for page in (b"<svg onload=alert(1)>", b"<!doctype html>", b"GIF89a/*", b"", b"RIFF\x00\x00\x00\x00WAVE"):
        assert picture_type(page) is None
