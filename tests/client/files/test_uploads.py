"""What is sent arrives, or is given up: an answer that takes nothing in is no step on the way."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.cli.remote.api import Api
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.errors import ClientError
from simpletuner_fleet.client.files.uploads import PAUSES_S, Sender, read_folder
from simpletuner_fleet.client.fleet import NO_PROGRESS
from simpletuner_fleet.client.troubles import UNREACHABLE
from simpletuner_fleet.client.trust import Choices
from tests.cli.conftest import Answer, FakeServer, Seen, server

__all__ = ["server"]


@pytest.fixture
def sender(server: FakeServer) -> Iterator[Sender]:
    where = ConnectionSettings(server.url, "test", None, "test", Choices(), "test", [])
    with Api(where) as api:
        yield Sender(api, NO_PROGRESS, sleep=lambda _: None)


def test_a_file_of_which_nothing_arrives_is_not_sent_without_end(
    server: FakeServer, sender: Sender, tmp_path: Path
) -> None:
    (tmp_path / "cat.txt").write_text("a cat")
    pushed = read_folder(tmp_path, NO_PROGRESS)
    tries = 0

    def keeps_nothing(seen: Seen) -> Any:
        nonlocal tries
        tries += 1
        return {"next_offset": 0, "complete": False} if tries < 100 else Answer(410, b"it never gives up")

    sha256 = pushed.files[0].sha256
    server.on("POST", "/api/data/objects", {"missing": [{"sha256": sha256, "offset": 0}]})
    server.on("PUT", f"/api/data/objects/{sha256}", keeps_nothing)
    with pytest.raises(ClientError) as given_up:
        sender.send(pushed, "cats")
    assert given_up.value.trouble.exit == UNREACHABLE
    assert tries == len(PAUSES_S) + 1


def test_a_folder_without_files_is_the_wrong_one(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match="it contains no files") as refused:
        read_folder(tmp_path, NO_PROGRESS)
    assert refused.value.next == ("verify the path",)
