"""What an older release has written is carried forward, and it refuses what a newer one has changed."""

from pathlib import Path

import pytest

from simpletuner_fleet import __version__
from simpletuner_fleet.store.failures import StoreRefused
from simpletuner_fleet.store.opening import open_store
from simpletuner_fleet.store.sql.migrate import SCHEMA_RELEASE, migrations_for
from tests.migrations.previous_release import write_database


async def test_an_older_release_refuses_what_a_newer_one_has_changed_and_says_how_to_go_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This release is the newer one here; the older one knows all its steps but the last."""
    file = tmp_path / "fleet.db"
    write_database(file)
    await open_store(f"sqlite:///{file}").close()
    before = file.read_bytes()
    known = migrations_for("sqlite")
    monkeypatch.setattr("simpletuner_fleet.store.sqlite.migrations_for", lambda dialect: known[:-1])
    with pytest.raises(StoreRefused) as refused:
        open_store(f"sqlite:///{file}")
    said = f"{refused.value.detail} {refused.value.next}"
    assert f"a newer release, {__version__}" in said
    assert f"schema version {known[-1].number}" in said
    assert "backup restore" in said
    assert file.read_bytes() == before


async def test_who_brought_a_database_to_its_schema_is_noted_in_it(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/fleet.db")
    assert await store.read(lambda view: view.setting(SCHEMA_RELEASE)) == __version__
    await store.close()
