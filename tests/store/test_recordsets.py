"""All rows of a table in one statement: every value comes back as it was, and rows are found by their keys."""

import time
from collections.abc import Iterator

import psycopg
import pytest

from simpletuner_fleet.store.postgres import PostgresSession
from simpletuner_fleet.store.rows.batches import RowWrite, Table
from simpletuner_fleet.store.rows.jobs import ATTEMPT_UPDATE_TABLES, JOB_UPDATE_TABLES
from simpletuner_fleet.store.sql import recordsets

TABLE = Table(name="things", columns=("id", "whole", "real", "text", "version"), guard="version")
ROWS = [
    ("a", 2**63 - 1, 1763260000.1234567, 'quotes " and \\ and \n', 1),
    ("b", -(2**63), 5e-324, "\u2028 \U0001f600 \x01 %s", 1),
    ("c", None, None, None, 1),
    ("d", 0, 1.7976931348623157e308, "", 1),
]


@pytest.fixture
def session(postgres_database: str) -> Iterator[PostgresSession]:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(
            b"CREATE TABLE things (id TEXT PRIMARY KEY, whole BIGINT, real DOUBLE PRECISION, text TEXT, version BIGINT)"
        )
    opened = PostgresSession(postgres_database, writes=True, monotonic=time.monotonic)
    yield opened
    opened.close()


def test_every_value_comes_back_as_it_was(session: PostgresSession) -> None:
    session.write_rows([RowWrite(TABLE, ROWS)])
    assert session.rows("SELECT * FROM things ORDER BY id", {}) == ROWS
    changed = [(id, 7, 0.1, "'; DROP TABLE things; --", 2, 1) for id, *_ in ROWS]
    session.write_rows([RowWrite(TABLE, changed, update=True)])
    assert session.rows("SELECT * FROM things ORDER BY id", {}) == [row[:5] for row in changed]


def test_rows_are_found_by_their_keys_however_small_the_table_was(
    session: PostgresSession, postgres_database: str
) -> None:
    session.write_rows([RowWrite(TABLE, ROWS)])
    with psycopg.connect(postgres_database) as outsider:
        types: dict[str, str] = dict(outsider.execute(recordsets.TYPES_OF, ("things",)).fetchall())
    plan = session.rows(
        "EXPLAIN " + recordsets.statement(RowWrite(TABLE, ROWS, update=True), types).replace("%s", "'[]'"), {}
    )
    text = "\n".join(str(line[0]) for line in plan)
    assert "things_pkey" in text, text
    assert "Seq Scan" not in text, text


def test_bytes_go_one_by_one_and_what_is_written_most_goes_at_once() -> None:
    assert not recordsets.fits(Table(name="t", columns=("id", "body")), {"id": "text", "body": "bytea"})
    for table in (*JOB_UPDATE_TABLES, *ATTEMPT_UPDATE_TABLES):
        assert recordsets.fits(table, dict.fromkeys(table.columns, "text"))
