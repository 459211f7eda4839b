"""`simpletuner data …` against the real server."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode
from simpletuner_fleet.cli.remote.api import Api, Json
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.files.uploads import PAUSES_S, Pushed, Sender, files_under, read_folder
from simpletuner_fleet.client.trust import Choices
from simpletuner_fleet.protocol.uploads import PART_BYTES
from tests.cli.test_against_server import Machine

PETS = {"cats/1.png": b"cat" * 1000, "cats/2.png": b"cat" * 1000, "dogs/größe.png": b"dog", "empty.txt": b""}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    started = Machine(tmp_path_factory.mktemp("machine"))
    started.started_info()
    yield started
    started.stop()


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    return written(tmp_path / "pets", PETS)


def written(folder: Path, files: dict[str, bytes]) -> Path:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def nobody(what: str, count: int, total: int) -> None:
    """Looks on."""


@pytest.mark.e2e
def test_a_datasets_life(machine: Machine, pets: Path, tmp_path: Path) -> None:
    pushed = machine.run("data", "push", str(pets))
    assert pushed.code == 0, pushed.err
    dataset_id = pushed.out.strip()
    assert dataset_id.startswith("sha256:")
    assert "pets: 4 files, 2.9 KiB," in pushed.err
    again = machine.run("data", "push", str(written(tmp_path / "copy", PETS)), "--name", "animals")
    assert again.out.strip() == dataset_id
    assert "0 B uploaded" in again.err
    (listed,) = machine.data("data", "list")["items"]
    assert (listed["id"], listed["name"], listed["files"]) == (dataset_id, "animals", 4)
    assert machine.data("data", "show", "animals")["workers"] == []
    files = machine.data("data", "show", dataset_id[:15], "--files")["items"]
    assert [file["path"] for file in files] == sorted(PETS)
    pulled = machine.run("data", "pull", "animals", str(tmp_path / "back"))
    assert pulled.code == 0, pulled.err
    assert {path: (tmp_path / "back" / path).read_bytes() for path in PETS} == PETS
    config = tmp_path / "job.json"
    config.write_text('{"trainer": "command", "settings": {"command": ["true", "dataset://p"]}}')
    job = machine.data("jobs", "submit", str(config), "--data", "p=animals")["job_id"]
    assert machine.data("jobs", "get", job)["requires"]["datasets"] == {dataset_id: 3003}
    refused = machine.run("data", "delete", "animals")
    assert (refused.code, job in refused.err) == (ExitCode.CONFLICT, True)
    machine.run("jobs", "cancel", job)
    assert machine.run("data", "delete", "animals").code == 0
    assert machine.run("data", "show", "animals").code == ExitCode.NOT_FOUND


@pytest.mark.e2e
def test_a_push_goes_on_where_another_broke_off(machine: Machine, tmp_path: Path) -> None:
    big = os.urandom(PART_BYTES + 500_000)
    folder = written(tmp_path / "big", {"big.bin": big, "small.txt": b"small"})
    with connected_to(machine) as api:
        pushed = read_folder(folder, nobody)
        sha256 = next(file.sha256 for file in pushed.files if file.path == "big.bin")
        query = {"offset": 0, "size": len(big)}
        answer = api.put_bytes(f"/api/data/objects/{sha256}", query, [big[:3_000_000]], 3_000_000)
        assert answer["next_offset"] == 3_000_000
        sender = Sender(api, nobody)
        sender.send(pushed, "big")
        assert sender.sent_bytes == pushed.bytes - 3_000_000


class BrokenLine(Api):
    """Every other part is lost: half of it before it arrives, half of the answers on their way back."""

    calls = 0

    def put_bytes(self, path: str, query: dict[str, Any], content: Iterable[bytes], length: int) -> Json:
        type(self).calls += 1
        if self.calls % 4 == 1:
            raise httpx2.ConnectError("broken")
        answer = super().put_bytes(path, query, content, length)
        if self.calls % 4 == 3:
            raise httpx2.ReadError("broken")
        return answer


class DeadLine(Api):
    def put_bytes(self, path: str, query: dict[str, Any], content: Iterable[bytes], length: int) -> Json:
        raise httpx2.ConnectError("dead")


def connected_to(machine: Machine, kind: type[Api] = Api) -> Api:
    token = (machine.folder / "data" / "admin_token").read_text().strip()
    return kind(
        ConnectionSettings(machine.started_info()["url"], "a test", token, "a test", Choices(), "a test", [])
    )


@pytest.mark.e2e
def test_a_broken_line_is_tried_again_and_a_dead_one_given_up(machine: Machine, tmp_path: Path) -> None:
    folder = written(tmp_path / "many", {f"{at}.txt": b"number %d" % at for at in range(20)})
    pushed = read_folder(folder, nobody)
    slept: list[float] = []
    with connected_to(machine, DeadLine) as api, pytest.raises(CliError):
        Sender(api, nobody, sleep=slept.append).send(pushed, "many")
    assert slept[: len(PAUSES_S)].count(PAUSES_S[0]) >= 1
    with connected_to(machine, BrokenLine) as api:
        assert Sender(api, nobody, sleep=slept.append).send(pushed, "many")["files"] == 20


@pytest.mark.e2e
def test_a_file_that_changes_while_it_is_pushed_is_told(machine: Machine, tmp_path: Path) -> None:
    folder = written(tmp_path / "moving", {"a.txt": b"as it was read"})
    pushed = read_folder(folder, nobody)
    (folder / "a.txt").write_bytes(b"as it is later")
    with connected_to(machine) as api, pytest.raises(CliError) as caught:
        Sender(api, nobody).send(pushed, "moving")
    assert caught.value.trouble.code == "E_DATA_CHANGED"


def test_the_same_folder_has_the_same_id_and_another_name_another(tmp_path: Path) -> None:
    def id_of(name: str, files: dict[str, bytes]) -> Pushed:
        return read_folder(written(tmp_path / name, files), nobody)

    one = id_of("one", PETS)
    assert one.id == id_of("two", dict(reversed(PETS.items()))).id
    assert one.id != id_of("three", {**PETS, "empty.txt": b"x"}).id
    assert len(one.contents) == 4, "three contents and the manifest"


def test_links_to_files_are_followed_and_links_to_folders_refused(tmp_path: Path, pets: Path) -> None:
    elsewhere = tmp_path / "elsewhere.png"
    elsewhere.write_bytes(b"linked")
    (pets / "link.png").symlink_to(elsewhere)
    assert "link.png" in {path.name for path in files_under(pets)}
    assert read_folder(pets, nobody).files[-1].size == len(b"linked")
    (pets / "round").symlink_to(pets)
    with pytest.raises(CliError, match="round"):
        read_folder(pets, nobody)


@pytest.mark.parametrize("name", ["back\\slash", "new\nline", os.fsdecode(b"caf\xe9")])
def test_a_name_that_other_machines_cannot_have_is_refused(pets: Path, name: str) -> None:
    (pets / name).write_bytes(b"x")
    with pytest.raises(CliError) as caught:
        read_folder(pets, nobody)
    assert caught.value.trouble.code == "E_DATA_FILE"


def test_what_cannot_be_pushed_is_told(tmp_path: Path) -> None:
    for folder, code in ((tmp_path / "none", "E_DATA_FOLDER"), (tmp_path, "E_DATA_FILE")):
        with pytest.raises(CliError) as caught:
            read_folder(folder, nobody)
        assert caught.value.trouble.code == code
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    for _ in range(2):
        with pytest.raises(CliError):
            list(files_under(tmp_path))
        (tmp_path / "broken").unlink(missing_ok=True)


def test_the_trainers_own_index_files_stay_behind_unless_they_are_wanted(pets: Path) -> None:
    plain = read_folder(pets, nobody)
    for name in ("aspect_ratio_bucket_indices_pets.json", "cats/aspect_ratio_bucket_metadata.json"):
        (pets / name).write_text("{}")
    pushed = read_folder(pets, nobody)
    assert pushed.id == plain.id
    assert pushed.left_out == (
        "aspect_ratio_bucket_indices_pets.json",
        "cats/aspect_ratio_bucket_metadata.json",
    )
    assert len(read_folder(pets, nobody, with_indices=True).files) == len(PETS) + 2
