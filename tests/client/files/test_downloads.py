"""Files arrive whole, whatever they are called and whatever stands in between."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.errors import ClientError
from simpletuner_fleet.client.files.downloads import PAUSES_S, Downloader, RemoteFile
from simpletuner_fleet.client.troubles import UNREACHABLE
from simpletuner_fleet.client.trust import Choices
from tests.cli.conftest import Answer, FakeServer, Seen, server

__all__ = ["server"]
CONTENT = b"0123456789" * 500


@pytest.fixture
def downloader(server: FakeServer) -> Iterator[Downloader]:
    where = ConnectionSettings(server.url, "test", None, "test", Choices(), "test", [])
    with Api(where) as api:
        yield Downloader(api, sleep=lambda _: None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def remote(place: str) -> RemoteFile:
    return RemoteFile(url="/file", place=place, size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest())


@pytest.mark.parametrize("name", ["画" * 85, "a" * 255, "é" * 127], ids=["three bytes", "one", "two"])
def test_a_name_as_long_as_a_disk_takes_it_is_written(
    server: FakeServer, downloader: Downloader, folder: Path, name: str
) -> None:
    server.on("GET", "/file", Answer(200, CONTENT))
    downloader.to_folder(folder, [remote(name)])
    assert [(one.name, one.read_bytes()) for one in folder.iterdir()] == [(name, CONTENT)]


@pytest.mark.parametrize("half", [1, 2_500, len(CONTENT) - 1])
def test_a_download_goes_on_behind_a_proxy_that_knows_no_ranges(
    server: FakeServer, downloader: Downloader, folder: Path, half: int
) -> None:
    server.on("GET", "/file", Answer(200, CONTENT))
    (folder / "model.part").write_bytes(CONTENT[:half])
    downloader.to_folder(folder, [remote("model")])
    assert (folder / "model").read_bytes() == CONTENT


def test_another_file_of_the_same_size_is_never_taken_for_it(
    server: FakeServer, downloader: Downloader, folder: Path
) -> None:
    server.on("GET", "/file", Answer(200, CONTENT[::-1]))
    (folder / "model.part").write_bytes(CONTENT[:100])
    with pytest.raises(ClientError) as refused:
        downloader.to_folder(folder, [remote("model")])
    assert refused.value.code == "E_DIGEST"
    assert list(folder.iterdir()) == []


def test_a_download_whose_tries_bring_nothing_more_ends(
    server: FakeServer, downloader: Downloader, folder: Path
) -> None:
    """As behind a proxy that answers everything with a page of its own."""
    asked = 0

    def answer(seen: Seen) -> Answer:
        nonlocal asked
        asked += 1
        assert asked < 100, "it never gives up"
        return Answer(200, CONTENT[:100])

    server.on("GET", "/file", answer)
    with pytest.raises(ClientError) as given_up:
        downloader.to_folder(folder, [remote("model")])
    assert given_up.value.trouble.exit == UNREACHABLE
    assert asked == len(PAUSES_S) + 1


def test_what_is_half_there_is_never_written_through_a_link(
    server: FakeServer, downloader: Downloader, folder: Path, tmp_path: Path
) -> None:
    """As somebody else may have left one in a folder that all can write to."""
    server.on("GET", "/file", Answer(200, CONTENT))
    theirs = tmp_path / "diary"
    theirs.write_bytes(b"mine")
    downloads: dict[str, Callable[[], None]] = {
        "model.part": lambda: downloader.to_folder(folder, [remote("model")]),
        "model.tar.part": lambda: downloader.to_archive(folder / "model.tar", [remote("model")]),
    }
    for name, download in downloads.items():
        (folder / name).symlink_to(theirs)
        with pytest.raises(ClientError) as refused:
            download()
        assert refused.value.code == "E_BAD_PATH"
        assert theirs.read_bytes() == b"mine"
        assert [one.name for one in folder.iterdir()] == [name]
        (folder / name).unlink()


def test_no_folder_is_made_beyond_a_link(
    server: FakeServer, downloader: Downloader, folder: Path, tmp_path: Path
) -> None:
    server.on("GET", "/file", Answer(200, CONTENT))
    (tmp_path / "elsewhere").mkdir()
    (folder / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ClientError) as refused:
        downloader.to_folder(folder, [remote("model/unet/weights")])
    assert refused.value.code == "E_BAD_PATH"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_place_that_cannot_be_written_is_named_and_not_taken_for_a_defect(
    server: FakeServer, downloader: Downloader, folder: Path
) -> None:
    server.on("GET", "/file", Answer(200, CONTENT))
    file = folder / "file"
    file.touch()
    downloads: list[Callable[[], None]] = [
        lambda: downloader.to_folder(file, [remote("model")]),
        lambda: downloader.to_folder(folder, [remote("file/model")]),
        lambda: downloader.to_archive(folder / "none" / "model.tar", [remote("model")]),
    ]
    for download in downloads:
        with pytest.raises(ClientError, match="nothing can be written to") as refused:
            download()
        assert refused.value.code == "E_FILE"
