"""Databases with our schema and nothing in them, for stores under test.

To bring a new database to the schema takes SQLite 0.07 s of CPU and PostgreSQL, which must also make and drop it, 0.4 s:
more than all else that a test of a store does. That the schema comes about is held by tests/migrations.
"""

import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from simpletuner_fleet.store.postgres import PostgresSession
from simpletuner_fleet.store.sql.migrate import migrate, migrations_for
from simpletuner_fleet.store.sqlite import SqliteSession

PATIENCE_MS = 30_000
TABLES = (
    "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1"
)
SEQUENCES = (
    "SELECT setval(oid::regclass, 1, false) FROM pg_class"
    " WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'"
)
SCHEMA = """
SELECT md5(string_agg(part, ';' ORDER BY part)) FROM (
    SELECT concat(oid, relname, relkind) FROM pg_class WHERE relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT concat(attrelid, attname, atttypid, attnotnull) FROM pg_attribute
        JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT concat(tgrelid, tgname, tgenabled) FROM pg_trigger
    UNION ALL SELECT concat(conrelid, conname) FROM pg_constraint
    UNION ALL SELECT concat(proname, prosrc) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
) AS parts (part)
"""


def lay_sqlite(path: Path) -> Path:
    """Writes the file as the store leaves it that has made it, and returns its path."""
    path.write_bytes(sqlite_image())
    return path


@cache
def sqlite_image() -> bytes:
    """Returns the file of a store that was made and closed, once for all tests of a process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fleet.db"
        session = SqliteSession(path, writes=True)
        session.prepare()
        migrate(session, migrations_for("sqlite"))
        session.close()
        return path.read_bytes()


class ReadyPostgres:
    """One database for many tests, as new for each: it is emptied after every one."""

    def __init__(self, url: str, admin: "psycopg.Connection[tuple[object, ...]]") -> None:
        self.url = url
        self._admin = admin
        self._tables = [str(name) for (name,) in admin.execute(TABLES.encode())]
        self._rows = {table: self._copied(table) for table in self._filled()}
        self._schema = self._schema_now()

    def make_empty(self) -> None:
        """Leaves the rows of a new database and whoever else was connected out; raises where the schema was changed."""
        self._admin.execute(
            b"SELECT pg_terminate_backend(pid, %d) FROM pg_stat_activity"
            b" WHERE datname = current_database() AND pid <> pg_backend_pid()" % PATIENCE_MS
        )
        assert self._schema_now() == self._schema, (
            "a test that changes the schema needs a `postgres_database`"
        )
        with self._admin.transaction():
            # Tables of ours refuse to be emptied; the triggers that do so rest meanwhile.
            self._admin.execute(b"SET LOCAL session_replication_role = replica")
            if filled := self._filled():
                self._admin.execute(f"TRUNCATE {', '.join(filled)} CASCADE".encode())
            self._admin.execute(SEQUENCES.encode())
            for table, rows in self._rows.items():
                with self._admin.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
                    copy.write(rows)

    def _filled(self) -> list[str]:
        each = (f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM {table})" for table in self._tables)
        return [str(name) for (name,) in self._admin.execute(" UNION ALL ".join(each).encode())]

    def _copied(self, table: str) -> bytes:
        with self._admin.cursor().copy(f"COPY {table} TO STDOUT".encode()) as copy:
            return b"".join(bytes(block) for block in copy)

    def _schema_now(self) -> object:
        return self._admin.execute(SCHEMA.encode()).fetchone()


@contextmanager
def fresh_database(server_url: str) -> Iterator[str]:
    """Yields the URL of an empty database; it is dropped afterwards with whoever is still connected."""
    name = f"fleet_{secrets.token_hex(6)}"
    with psycopg.connect(server_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    finally:
        with psycopg.connect(server_url, autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@contextmanager
def ready_postgres(url: str) -> Iterator[ReadyPostgres]:
    """Brings an empty database to the schema."""
    session = PostgresSession(url, writes=True, monotonic=time.monotonic)
    migrate(session, migrations_for("postgresql"))
    session.close()
    with psycopg.connect(url, autocommit=True) as admin:
        yield ReadyPostgres(url, admin)
