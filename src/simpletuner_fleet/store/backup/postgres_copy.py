"""Backs up and restores a PostgreSQL database: its tables as one transaction sees them, with no other tool needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from simpletuner_fleet.core.people.revocations import Withdrawn
from simpletuner_fleet.store.backup.archive import (
    CHUNK_BYTES,
    BackupManifest,
    BackupUnusable,
    Member,
    member_of,
)
from simpletuner_fleet.store.backup.restore_fixups import apply_fixups
from simpletuner_fleet.store.failures import StoreBusy
from simpletuner_fleet.store.postgres import translated_for_psycopg
from simpletuner_fleet.store.postgres_connection import LOCK_SPACE, unusable
from simpletuner_fleet.store.sql.migrate import SCHEMA_VERSION_TABLE, migrations_for

ENDING = ".copy"
TABLES = """
SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = current_schema() AND relkind = 'r' ORDER BY relname
"""
NEEDS = """
SELECT needing.relname, needed.relname FROM pg_constraint
JOIN pg_class needing ON needing.oid = conrelid JOIN pg_class needed ON needed.oid = confrelid
JOIN pg_namespace ON pg_namespace.oid = needing.relnamespace
WHERE contype = 'f' AND nspname = current_schema()
"""
COLUMNS = """
SELECT column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND table_name = %s AND is_generated = 'NEVER' ORDER BY ordinal_position
"""
IDENTITIES = """
SELECT table_name, column_name FROM information_schema.columns
WHERE table_schema = current_schema() AND is_identity = 'YES'
"""

Connection = psycopg.Connection[tuple[Any, ...]]


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    """Connects for one transaction. Raises StoreRefused where the database is away or refuses something."""
    try:
        with psycopg.connect(url) as connection:
            yield connection
    except psycopg.Error as error:
        raise unusable(error) from error


def copy_out(url: str, folder: Path, version: str, now: float) -> BackupManifest:
    with _connected(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.read_only = True
        members = tuple(_copy_table(connection, name, folder) for name in _tables_in_order(connection))
        if not members:
            raise BackupUnusable("The database is empty: no server has used it yet.")
        (schema,) = _row(connection, "SELECT max(version) FROM schema_version")
        (epoch,) = _row(connection, "SELECT epoch FROM counters")
        (audit_seq,) = _row(connection, "SELECT coalesce(max(seq), 0) FROM audit")
        fleet = connection.execute("SELECT value FROM settings WHERE key = 'fleet.id'").fetchone()
    return BackupManifest(
        version=version,
        database="postgresql",
        schema=schema,
        began_at=now,
        fleet_id=fleet[0] if fleet else None,
        epoch=epoch,
        audit_seq=audit_seq,
        members=members,
    )


def verify(folder: Path, manifest: BackupManifest) -> None:
    """Counts the rows; the bytes were compared before."""
    for member in manifest.members:
        with (folder / member.name).open("rb") as file:
            rows = sum(1 for _ in file)
        if rows != member.rows:
            raise BackupUnusable(f"{member.name} holds {rows} rows, and the manifest says {member.rows}.")


def put_back(
    folder: Path,
    url: str,
    manifest: BackupManifest,
    withdrawn: Withdrawn,
    link_prefix: str,
    now: float,
    note: str,
    *,
    replace: bool,
) -> str | None:
    """Restores the database in one transaction, which does all of it or nothing.

    Returns the schema to which what was there before has been renamed.
    """
    with _connected(url) as connection:
        if not _row(connection, f"SELECT pg_try_advisory_lock({LOCK_SPACE}, hashtext(current_schema()))")[0]:
            raise StoreBusy
        kept = _make_room(connection, now, replace=replace)
        _make_tables(connection, manifest.schema)
        for member in manifest.members:
            _fill_table(connection, member, folder)
        for table, column in connection.execute(IDENTITIES).fetchall():
            _continue_counting(connection, table, column)

        def run(text: str, params: Any) -> list[tuple[Any, ...]]:
            cursor = connection.execute(translated_for_psycopg(text), params)
            return cursor.fetchall() if cursor.description else []

        apply_fixups(run, withdrawn, link_prefix, now, note)
    return kept


def _make_room(connection: Connection, now: float, *, replace: bool) -> str | None:
    if not connection.execute(TABLES).fetchall():
        return None
    if not replace:
        raise BackupUnusable(
            "The database is not empty.", next_step="Say --replace; what is there is kept in another schema."
        )
    (schema,) = _row(connection, "SELECT current_schema()")
    kept = f"{schema}_before_{int(now)}"
    connection.execute(
        sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(sql.Identifier(schema), sql.Identifier(kept))
    )
    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    return kept


def _make_tables(connection: Connection, schema: int) -> None:
    """Makes the tables as they were when the backup was made; the next start of the server migrates them."""
    migrations = migrations_for("postgresql")
    if schema > migrations[-1].number:
        raise BackupUnusable(
            f"The backup has schema version {schema}, and this program knows only up to {migrations[-1].number}.",
            next_step="Restore it with the newer version of the program that has made it.",
        )
    connection.execute(SCHEMA_VERSION_TABLE.encode())
    for migration in migrations:
        if migration.number <= schema:
            connection.execute(migration.text.encode())


def _tables_in_order(connection: Connection) -> list[str]:
    """Returns the tables so that those which other rows refer to come first."""
    left = {name for (name,) in connection.execute(TABLES).fetchall()}
    needs = [pair for pair in connection.execute(NEEDS).fetchall() if pair[0] != pair[1]]
    ordered: list[str] = []
    while left:
        free = sorted(one for one in left if not any(a == one and b in left for a, b in needs))
        if not free:
            raise BackupUnusable(f"The tables {', '.join(sorted(left))} belong to each other in a circle.")
        ordered += free
        left -= set(free)
    return ordered


def _copy_table(connection: Connection, table: str, folder: Path) -> Member:
    columns = tuple(name for (name,) in connection.execute(COLUMNS, (table,)).fetchall())
    place = folder / f"{table}{ENDING}"
    statement = sql.SQL("COPY {} ({}) TO STDOUT").format(sql.Identifier(table), _names(columns))
    with place.open("wb") as file, connection.cursor() as cursor:
        with cursor.copy(statement) as copy:
            for chunk in copy:
                file.write(chunk)
        rows = cursor.rowcount
    return member_of(place, rows=rows, columns=columns)


def _fill_table(connection: Connection, member: Member, folder: Path) -> None:
    table = sql.Identifier(member.name.removesuffix(ENDING))
    connection.execute(sql.SQL("DELETE FROM {}").format(table))  # what a migration has filled in
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(table, _names(member.columns))
    with (
        (folder / member.name).open("rb") as file,
        connection.cursor() as cursor,
        cursor.copy(statement) as copy,
    ):
        while chunk := file.read(CHUNK_BYTES):
            copy.write(chunk)


def _continue_counting(connection: Connection, table: str, column: str) -> None:
    text = "SELECT setval(pg_get_serial_sequence({}, {}), coalesce(max({}), 0) + 1, false) FROM {}"
    connection.execute(
        sql.SQL(text).format(
            sql.Literal(table), sql.Literal(column), sql.Identifier(column), sql.Identifier(table)
        )
    )


def _names(columns: tuple[str, ...]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in columns)


def _row(connection: Connection, text: str) -> tuple[Any, ...]:
    row = connection.execute(text.encode()).fetchone()
    assert row is not None
    return row
