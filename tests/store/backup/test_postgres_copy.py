"""A PostgreSQL database is backed up while it is written to, and put back with every row and no credential too many."""

from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from simpletuner_fleet.core.leadership import next_term
from simpletuner_fleet.core.people.revocations import Withdrawn
from simpletuner_fleet.core.restoring import HANDS_OFF, RESTORED, least_epoch
from simpletuner_fleet.store.backup import postgres_copy
from simpletuner_fleet.store.backup.archive import BackupUnusable, unpack_archive, write_archive
from simpletuner_fleet.store.failures import StoreBusy
from simpletuner_fleet.store.postgres import PostgresStore
from tests.core.builders import a_worker

NOTE = msgspec.json.encode({"note": True}).decode()


async def filled(url: str) -> None:
    store = PostgresStore(url)

    def fill(tx) -> None:  # type: ignore[no-untyped-def]
        for number in range(3):
            tx.add_worker(a_worker(id=f"w_{number}", name=f"gpu-{number}", token_hash=f"hash-{number}"))
        tx.put_setting("one_time_key:abc", "a link that works once")
        tx.put_setting("odd\tname", "tabs\tand\nlines\\n and ' \" \u2603")

    await store.write(fill)
    await store.close()
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO leadership (term, holder, url, fingerprint, renewals, released, renewed_at)"
            " VALUES (7, 'one', 'http://one', '', 3, TRUE, now())"
        )


def rows(url: str, table: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1".encode()).fetchall()


def workers_but_their_agents(url: str) -> list[dict[str, Any]]:
    """Which agent was the newest is not brought back."""
    with psycopg.connect(url) as connection:
        found_rows = connection.execute(
            b"SELECT to_jsonb(workers) - 'incarnation' FROM workers ORDER BY id"
        ).fetchall()
    return [row for (row,) in found_rows]


async def test_every_row_comes_back_and_what_must_not_does_not(
    postgres_database: str, tmp_path: Path
) -> None:
    url = postgres_database
    await filled(url)
    out, back = tmp_path / "out", tmp_path / "back"
    out.mkdir()
    back.mkdir()
    with psycopg.connect(url) as writer:  # a transaction under way is not in it, and keeps nobody waiting
        writer.execute("INSERT INTO settings (key, value) VALUES ('late', 'x')")
        manifest = postgres_copy.copy_out(url, out, "1.2.3", 1000.0)
        writer.commit()
    write_archive(tmp_path / "backup", out, manifest)
    assert unpack_archive(tmp_path / "backup", back) == manifest
    postgres_copy.verify(back, manifest)
    workers, settings = workers_but_their_agents(url), rows(url, "settings")
    with pytest.raises(BackupUnusable, match="not empty"):
        postgres_copy.put_back(back, url, manifest, Withdrawn(), "one_time_key:", 2000.0, NOTE, replace=False)
    withdrawn = Withdrawn(workers=frozenset({"w_1"}))
    kept = postgres_copy.put_back(back, url, manifest, withdrawn, "one_time_key:", 2000.0, NOTE, replace=True)
    assert kept
    restored = workers_but_their_agents(url)
    assert [row for row in restored if row["id"] != "w_1"] == [row for row in workers if row["id"] != "w_1"]
    assert "hash-1" not in repr(restored)
    now = {str(key): text for key, text in rows(url, "settings")}
    assert now.pop(RESTORED) == NOTE
    assert now.pop(HANDS_OFF), "machines are left alone until somebody says so"
    assert now == {key: text for key, text in settings if key not in ("one_time_key:abc", "late")}
    assert rows(url, "counters")[0][1] == least_epoch(2000.0) > manifest.epoch
    term = rows(url, "leadership")[0][0]
    assert isinstance(term, int)
    assert next_term(term, 2000.0) > next_term(term, 1999.0) > 7, "workers believe no older term"
    store = PostgresStore(url)  # the server's own start accepts it
    assert len(await store.read(lambda view: view.workers())) == 3
    with pytest.raises(StoreBusy):
        postgres_copy.put_back(back, url, manifest, Withdrawn(), "one_time_key:", 3000.0, NOTE, replace=True)
    await store.close()


async def test_a_table_with_a_row_too_few_is_told(postgres_database: str, tmp_path: Path) -> None:
    await filled(postgres_database)
    manifest = postgres_copy.copy_out(postgres_database, tmp_path, "1.2.3", 1000.0)
    place = tmp_path / "workers.copy"
    place.write_bytes(b"".join(place.read_bytes().splitlines(keepends=True)[1:]))
    with pytest.raises(BackupUnusable, match="rows"):
        postgres_copy.verify(tmp_path, manifest)
