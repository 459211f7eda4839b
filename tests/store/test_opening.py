import asyncio
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from simpletuner_fleet.store import SqliteStore, StoreRefused, open_store
from simpletuner_fleet.store.postgres import PostgresStore


async def test_a_sqlite_url_opens_a_file(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/new/fleet.db")
    assert isinstance(store, SqliteStore)
    await store.close()
    assert (tmp_path / "new" / "fleet.db").exists()


async def test_three_slashes_name_a_file_beside_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    await open_store("sqlite:///fleet.db").close()
    assert (tmp_path / "fleet.db").exists()


async def test_a_postgres_url_opens_a_server(postgres_database: str) -> None:
    store = open_store(postgres_database)
    assert isinstance(store, PostgresStore)
    await store.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "fleet.db",
        "mysql://u:s3cret@h/d",
        "sqlite://fleet.db",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///a/",
    ],
)
def test_a_url_that_names_no_database_is_refused_with_a_hint(url: str) -> None:
    with pytest.raises(StoreRefused) as refused:
        open_store(url)
    assert "s3cret" not in refused.value.detail
    assert "sqlite:///" in (refused.value.next or "")


OPEN_WITHOUT_ROOM = f"""
import resource, sys
from simpletuner_fleet.store import SqliteStore, StoreRefused
from simpletuner_fleet.store import sqlite_file
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, {resource.RLIM_INFINITY}))
sqlite_file.LEAST_FREE_BYTES = int(sys.argv[2])
try:
    SqliteStore(sys.argv[1])
except StoreRefused as refused:
    print(refused.detail)
"""


@pytest.mark.parametrize(
    ("least_free_bytes", "words"),
    [
        (0, "cannot be used: disk I/O error."),
        (2**62, "cannot be used: The disk that holds the database is full"),
    ],
)
async def test_a_database_beside_which_there_is_no_room_is_not_called_damaged(
    tmp_path: Path, least_free_bytes: int, words: str
) -> None:
    file = tmp_path / "fleet.db"
    await SqliteStore(file).close()
    opening = [sys.executable, "-c", OPEN_WITHOUT_ROOM, str(file), str(least_free_bytes)]
    run = partial(subprocess.run, opening, capture_output=True, text=True, timeout=60, check=True)
    printed = (await asyncio.to_thread(run)).stdout
    assert words in printed
    await SqliteStore(file).close()  # it is as good as before
