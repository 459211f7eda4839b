"""Backups with their keys in a file apart: what fails says truly what was changed by then, and no key is lost."""

import asyncio
import io
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from simpletuner_fleet.cli.frame.errors import ExitCode
from simpletuner_fleet.store import open_store
from tests.cli.conftest import Run


class Backed(NamedTuple):
    """The data folder of a server, and a backup of it with its keys."""

    data: Path
    file: Path
    keys: Path

    def epoch(self) -> int:
        with closing(sqlite3.connect(self.data / "fleet.db")) as database:
            return int(database.execute("SELECT epoch FROM counters").fetchone()[0])

    def key_texts(self) -> dict[str, str]:
        return {name: (self.data / name).read_text() for name in ("secrets.key", "secret")}


@pytest.fixture
def data(home: Path) -> Path:
    folder = home / "data"
    store = open_store(f"sqlite:///{folder}/fleet.db")
    asyncio.run(store.close())
    (folder / "secrets.key").write_text("the key of the backup")
    (folder / "secret").write_text("the secret of the backup")
    (folder / "tls").mkdir()
    (folder / "tls" / "ca.pem").write_text("the certificate of the backup")
    return folder


@pytest.fixture
def backed(data: Path, run: Run) -> Backed:
    """The folder has other keys by now than its backup."""
    made = Backed(data, data.parent / "fleet.backup", data.parent / "fleet.keys")
    done = run("backup", "create", str(made.file), "--keys", str(made.keys))
    assert done.code == ExitCode.OK, done.err
    (data / "secrets.key").write_text("the newer key")
    (data / "secret").write_text("the newer secret")
    return made


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for member, text in members:
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text))
    return content.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


GOOD = (tarfile.TarInfo("secrets.key"), b"another key")
UNUSABLE: dict[str, Callable[[bytes], bytes]] = {
    "no tar": lambda good: b"no tar at all" * 100,
    "empty": lambda good: b"",
    "cut off": lambda good: good[:700],
    "a name that no server uses": lambda good: packed(GOOD, (tarfile.TarInfo("../passwd"), b"x")),
    "a link": lambda good: packed(GOOD, (link("secret", "/etc/passwd"), b"")),
    "no key in it": lambda good: packed(),
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_a_restore_with_unusable_keys_changes_neither_database_nor_keys(
    backed: Backed, run: Run, kind: str
) -> None:
    backed.keys.write_bytes(UNUSABLE[kind](backed.keys.read_bytes()))
    before = backed.epoch(), backed.key_texts()
    refused = run("backup", "restore", str(backed.file), "--replace", "--keys", str(backed.keys))
    assert refused.code == ExitCode.FAILED
    assert "error: nothing was changed" in refused.err
    assert "backup_unusable" in refused.err
    assert (backed.epoch(), backed.key_texts()) == before


def test_a_restore_whose_keys_are_not_there_changes_nothing(backed: Backed, run: Run) -> None:
    before = backed.epoch(), backed.key_texts()
    refused = run("backup", "restore", str(backed.file), "--replace", "--keys", str(backed.data / "none"))
    assert refused.code == ExitCode.FAILED
    assert "error: nothing was changed" in refused.err
    assert (backed.epoch(), backed.key_texts()) == before


def test_a_restore_that_cannot_write_the_keys_says_that_the_database_is_restored(
    backed: Backed, run: Run
) -> None:
    before = backed.epoch()
    (backed.data / "tls" / "ca.pem").unlink()
    (backed.data / "tls").rmdir()
    (backed.data / "tls").write_text("a file where a folder has to be")
    failed = run("backup", "restore", str(backed.file), "--replace", "--keys", str(backed.keys))
    assert failed.code == ExitCode.FAILED
    assert backed.epoch() > before
    assert "the database is restored as of" in failed.err
    assert f"error: nothing can be written to {backed.data}" in failed.err
    assert "nothing was changed" not in failed.err


def test_a_restore_puts_every_key_back_for_its_owner_alone(backed: Backed, run: Run) -> None:
    done = run("backup", "restore", str(backed.file), "--replace", "--keys", str(backed.keys))
    assert done.code == ExitCode.OK, done.err
    assert backed.key_texts() == {
        "secrets.key": "the key of the backup",
        "secret": "the secret of the backup",
    }
    assert (backed.data / "tls" / "ca.pem").read_text() == "the certificate of the backup"
    for name in ("secrets.key", "secret", "tls/ca.pem"):
        assert (backed.data / name).stat().st_mode & 0o077 == 0


def test_a_key_that_lies_elsewhere_is_in_the_file_itself(data: Path, run: Run, tmp_path: Path) -> None:
    (data / "secret").rename(tmp_path / "elsewhere")
    (data / "secret").symlink_to(tmp_path / "elsewhere")
    keys = tmp_path / "fleet.keys"
    assert run("backup", "create", str(tmp_path / "b"), "--keys", str(keys)).code == ExitCode.OK
    assert b"the secret of the backup" in keys.read_bytes()


def test_a_backup_whose_keys_cannot_be_written_is_there_and_said_to_be(
    data: Path, run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.backup"
    failed = run("backup", "create", str(file), "--keys", str(tmp_path / "no" / "such" / "place"))
    assert failed.code == ExitCode.FAILED
    assert f"{file} contains the database" in failed.err
    assert f"error: nothing can be written to {tmp_path / 'no' / 'such'}" in failed.err
    assert "nothing was changed" not in failed.err
    assert run("backup", "verify", str(file)).code == ExitCode.OK


def test_a_backup_of_a_folder_without_keys_writes_nothing(data: Path, run: Run, tmp_path: Path) -> None:
    for key in ("secrets.key", "secret", "tls/ca.pem"):
        (data / key).unlink()
    refused = run("backup", "create", str(tmp_path / "b"), "--keys", str(tmp_path / "k"))
    assert refused.code == ExitCode.FAILED
    assert "error: nothing was changed" in refused.err
    assert not (tmp_path / "b").exists()
    assert not (tmp_path / "k").exists()
