"""All rows of a table in one statement: every value comes back as it was, and rows are found by their keys."""

import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import psycopg
import pytest

from simpletuner_fleet.store.failures import BatchLost, Duplicate
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


def test_an_update_of_rows_of_which_one_is_another_version_changes_none(session: PostgresSession) -> None:
    session.write_rows([RowWrite(TABLE, ROWS)])
    changed = [(id, 7, 0.1, "", 2, 1 if id != "c" else 2) for id, *_ in ROWS]
    with pytest.raises(BatchLost, match="Some of 4 rows of 'things' were changed"):
        session.write_rows([RowWrite(TABLE, changed, update=True)])
    assert session.rows("SELECT * FROM things ORDER BY id", {}) == ROWS


def in_one_transaction(session: PostgresSession, *steps: Callable[[], object]) -> None:
    try:
        with session.transaction():
            for step in steps:
                step()
    except BaseException:
        session.rollback()
        raise


def test_nothing_of_a_transaction_is_kept_of_which_a_statement_failed(session: PostgresSession) -> None:
    def all_rows() -> None:
        session.write_rows([RowWrite(TABLE, ROWS)])

    def a_missing_row() -> None:
        session.write_rows([RowWrite(TABLE, [("e", 7, 0.1, "", 2, 1)], update=True)])

    def later() -> None:
        session.run("UPDATE things SET text = :text WHERE id = 'a'", {"text": "later"})

    with pytest.raises(BatchLost, match="'things' were changed"):
        in_one_transaction(session, all_rows, a_missing_row, later)
    with pytest.raises(Duplicate):
        in_one_transaction(session, all_rows, all_rows, a_missing_row)
    assert session.rows("SELECT * FROM things", {}) == []
    in_one_transaction(session, all_rows, later)
    assert session.rows("SELECT text FROM things WHERE id = 'a'", {}) == [("later",)]


def test_a_transaction_takes_one_round_trip(session: PostgresSession, tmp_path: Path) -> None:
    session.write_rows([RowWrite(TABLE, ROWS)])
    changed = [(id, 7, 0.1, "", 2, 1) for id, *_ in ROWS]
    assert session._connection is not None
    with (tmp_path / "trace").open("w+b") as trace:
        session._connection.pgconn.trace(trace.fileno())
        in_one_transaction(session, lambda: session.write_rows([RowWrite(TABLE, changed, update=True)]))
        session._connection.pgconn.untrace()
        trace.seek(0)
        said = [line.split(b"\t") for line in trace.read().splitlines()]
    speakers = [speaker for speaker, _ in groupby(fields[1] for fields in said)]
    assert speakers == [b"F", b"B"], said


def test_rows_are_found_by_their_keys_however_small_the_table_was(
    session: PostgresSession, postgres_database: str
) -> None:
    session.write_rows([RowWrite(TABLE, ROWS)])
    with psycopg.connect(postgres_database) as outsider:
        types: dict[str, str] = dict(outsider.execute(recordsets.TYPES_OF, ("things",)).fetchall())
    statement, _ = recordsets.statement(RowWrite(TABLE, [], update=True), types)
    plan = session.rows("EXPLAIN " + statement.replace("%s", "'[]'", 1).replace("%s", "0"), {})
    text = "\n".join(str(line[0]) for line in plan)
    assert "things_pkey" in text, text
    assert "Seq Scan" not in text, text


def test_bytes_go_column_by_column_and_come_back_as_they_were(session: PostgresSession) -> None:
    session.script("CREATE TABLE blobs (id TEXT PRIMARY KEY, body BYTEA)")
    table = Table(name="blobs", columns=("id", "body"))
    rows = [("a", bytes(range(256))), ("b", b""), ('c", {NULL} \\', b"{}"), ("NULL", b"NULL")]
    session.write_rows([RowWrite(table, rows), RowWrite(table, rows, on_conflict="ON CONFLICT DO NOTHING")])
    assert sorted(session.rows("SELECT * FROM blobs", {})) == sorted(rows)


def test_bytes_have_no_counterpart_in_json_and_what_is_written_most_has_none() -> None:
    assert not recordsets.fits(Table(name="t", columns=("id", "body")), {"id": "text", "body": "bytea"})
    for table in (*JOB_UPDATE_TABLES, *ATTEMPT_UPDATE_TABLES):
        assert recordsets.fits(table, dict.fromkeys(table.columns, "text"))
