"""A SQLite database is put back whatever lies where it was, and never mixed with what was there."""

import asyncio
import os
import resource
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from simpletuner_fleet.core.people.revocations import Withdrawn
from simpletuner_fleet.core.restoring import RESTORED
from simpletuner_fleet.store import SqliteStore, StoreBusy, StoreRefused
from simpletuner_fleet.store.backup import sqlite_copy
from simpletuner_fleet.store.backup.archive import BackupManifest, unpack_archive, write_archive

NOW = 2000.0


@pytest.fixture
def database(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "fleet.db"


@pytest.fixture
def copy(tmp_path: Path, database: Path) -> Path:
    """Returns a folder with a copy of the database."""

    async def fill() -> None:
        store = SqliteStore(database)
        await store.write(lambda tx: tx.put_setting("kept", "as of the backup"))
        await store.close()

    asyncio.run(fill())
    folder = tmp_path / "copy"
    folder.mkdir()
    copied_out(database, folder)
    return folder


def copied_out(database: Path, folder: Path) -> BackupManifest:
    return sqlite_copy.copy_out(database, folder, "1.2.3", 1000.0)


def put_back(copy: Path, database: Path) -> Path | None:
    return sqlite_copy.put_back(copy, database, Withdrawn(), "one_time_key:", NOW, "{}", replace=True)


def settings_in(database: Path) -> dict[str, str]:
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return dict(connection.execute("SELECT key, value FROM settings").fetchall())


def unfinished_log(database: Path, folder: Path) -> None:
    """Copies the database and its write-ahead log as a killed server leaves them."""
    folder.mkdir()

    async def copy_while_open() -> None:
        store = SqliteStore(database)
        await store.write(lambda tx: tx.put_setting("kept", "since the backup"))
        for ending in ("", "-wal"):
            shutil.copy(f"{database}{ending}", folder / f"fleet.db{ending}")
        await store.close()

    asyncio.run(copy_while_open())


def test_a_damaged_database_is_replaced_and_kept_as_it_is(copy: Path, database: Path) -> None:
    damage = b"no database at all " * 1000
    database.write_bytes(damage)
    kept = put_back(copy, database)
    assert kept is not None
    assert kept.read_bytes() == damage
    assert settings_in(database)["kept"] == "as of the backup"


def test_a_log_without_its_database_does_not_become_part_of_the_restored_one(
    copy: Path, database: Path, tmp_path: Path
) -> None:
    unfinished_log(database, tmp_path / "killed")
    database.unlink()
    shutil.copy(tmp_path / "killed" / "fleet.db-wal", f"{database}-wal")
    put_back(copy, database)
    settings = settings_in(database)
    assert settings["kept"] == "as of the backup"
    assert settings[RESTORED] == "{}"


def test_what_only_the_log_held_is_in_the_database_that_is_kept(
    copy: Path, database: Path, tmp_path: Path
) -> None:
    unfinished_log(database, tmp_path / "killed")
    for file in (tmp_path / "killed").iterdir():
        shutil.copy(file, database.parent / file.name)
    kept = put_back(copy, database)
    assert kept is not None
    assert settings_in(kept)["kept"] == "since the backup"
    assert settings_in(database)["kept"] == "as of the backup"


def test_a_link_is_followed_to_where_a_running_server_has_its_lock(
    copy: Path, database: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(database)
    store = SqliteStore(link)
    with pytest.raises(StoreBusy):
        put_back(copy, link)
    asyncio.run(store.close())
    put_back(copy, link)
    assert link.is_symlink()
    assert settings_in(database)["kept"] == "as of the backup"


def test_a_program_that_reads_the_database_is_said_and_nothing_changes(copy: Path, database: Path) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as reader:
        reader.execute("PRAGMA journal_mode = WAL").fetchall()
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM settings").fetchall()
        with pytest.raises(StoreRefused, match="Another program has locked the database"):
            put_back(copy, database)
    assert sorted(os.listdir(database.parent)) == ["fleet.db", "fleet.db.lock"]


def test_a_database_that_cannot_be_read_is_called_damaged(database: Path, tmp_path: Path) -> None:
    database.write_bytes(b"no database at all " * 1000)
    with pytest.raises(StoreRefused, match="is damaged"):
        copied_out(database, tmp_path)


def test_a_disk_too_small_for_the_copy_is_said_and_not_taken_for_damage(
    database: Path, copy: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, limits[1]))
    try:
        with pytest.raises(OSError, match=str(tmp_path)):
            copied_out(database, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_backup_that_finds_no_room_to_be_unpacked_is_not_called_unusable(
    database: Path, tmp_path: Path
) -> None:
    asyncio.run(SqliteStore(database).close())
    made, unpacked = tmp_path / "made", tmp_path / "unpacked"
    made.mkdir()
    unpacked.mkdir()
    write_archive(tmp_path / "backup", made, copied_out(database, made))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            unpack_archive(tmp_path / "backup", unpacked)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
