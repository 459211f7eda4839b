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
