"""Keeps the leader's lease and the orchestrators' shared files in PostgreSQL, on a connection of their own."""

import logging

import psycopg

from simpletuner_fleet.core.leadership import Lease, next_term
from simpletuner_fleet.store.failures import StoreRefused
from simpletuner_fleet.store.postgres_connection import (
    PostgresConnection,
    connected,
    conninfo_of,
    insist_on_durability,
    insist_on_one_session,
    unusable,
)
from simpletuner_fleet.store.sql.database import Row
from simpletuner_fleet.store.sql.migrate import SCHEMA_RELEASE, migrations_for

log = logging.getLogger(__name__)

MIGRATION = 11
"""Makes the two tables; it is run here first, since it takes a leader to run the others."""
MAKING = 0x53544655
"""The advisory lock under which they are made."""
IMPATIENT: dict[str, str | int | None] = {"connect_timeout": 2, "tcp_user_timeout": 2_000}
LONGEST_STATEMENT = "4s"
"""A takeover may have to wait until the database has ended what the former leader was writing."""
END_FROZEN = b"""
SELECT pg_terminate_backend(pid) FROM pg_stat_activity JOIN pg_locks USING (pid)
WHERE datname = current_database() AND relation = to_regclass('leadership') AND mode = 'RowShareLock'
    AND wait_event_type = 'Client' AND usename = current_user
    AND EXISTS (SELECT 1 FROM leadership WHERE term = %(seen_term)s AND renewals = %(seen_renewals)s)
"""
"""Ends the transaction that waits for nobody but the seen leader, who has not renewed the lease for all its time."""
LOCAL_DISK_CAN_WAIT = (
    b"SELECT set_config('synchronous_commit', CASE current_setting('synchronous_standby_names')"
    b" WHEN '' THEN 'off' ELSE current_setting('synchronous_commit') END, TRUE)"
)
COLUMNS = b"term, holder, url, fingerprint, renewals, released"


class BookClosed(StoreRefused):
    """The database is not responding."""

    code = "lease_unknown"


class PostgresLeaseBook:
    """Keeps the leader's lease and the files that all orchestrators share, in PostgreSQL.

    It is for one thread. Every method raises BookClosed while the database does not answer.
    """

    def __init__(self, url: str) -> None:
        self._conninfo = conninfo_of(url, **IMPATIENT)
        self._connection: PostgresConnection | None = None
        self._newest_known = migrations_for("postgresql")[-1].number
        self._said_newer = False

    def open(self) -> None:
        """Makes the tables where they are missing. Raises StoreRefused for a database that cannot be used."""
        try:
            insist_on_one_session(self._conninfo)
            connection = self._connected()
            if connection.execute(b"SELECT to_regclass('shared_files')").fetchone() == (None,):
                self._make_tables(connection)
        except psycopg.Error as error:
            raise unusable(error) from error

    def _make_tables(self, connection: PostgresConnection) -> None:
        text = next(each.text for each in migrations_for("postgresql") if each.number == MIGRATION)
        with connection.transaction():
            connection.execute(b"SELECT pg_advisory_xact_lock(%s)", (MAKING,))
            connection.execute(text.encode(), prepare=False)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def look(self) -> Lease | None:
        row = self._row(b"SELECT " + COLUMNS + b" FROM leadership")
        return None if row is None else _lease_of(row)

    def take(self, seen: Lease | None, holder: str, url: str, fingerprint: str) -> Lease | None:
        """Begins a new term.

        Returns None where another was quicker, the holder has renewed, or the database is too new.
        """
        values = {"holder": holder, "url": url, "fingerprint": fingerprint}
        if self._is_newer():
            if not self._said_newer:
                log.warning(
                    "a newer release (%s) has used this database: this one passes requests on, and does not lead",
                    self.setting(SCHEMA_RELEASE) or "it did not note its number",
                )
            self._said_newer = True
            return None
        if seen is None:
            row = self._row(
                b"INSERT INTO leadership (term, holder, url, fingerprint, renewals, released, renewed_at)"
                b" VALUES (%(term)s, %(holder)s, %(url)s, %(fingerprint)s, 0, FALSE, clock_timestamp())"
                b" ON CONFLICT DO NOTHING RETURNING " + COLUMNS,
                {**values, "term": next_term(0, self._now())},
            )
        else:
            self._run(END_FROZEN, {"seen_term": seen.term, "seen_renewals": seen.renewals})
            row = self._row(
                b"UPDATE leadership SET term = %(term)s, holder = %(holder)s, url = %(url)s,"
                b" fingerprint = %(fingerprint)s, released = FALSE, renewals = renewals + 1,"
                b" renewed_at = clock_timestamp()"
                b" WHERE term = %(seen_term)s AND renewals = %(seen_renewals)s RETURNING " + COLUMNS,
                {
                    **values,
                    "term": next_term(seen.term, self._now()),
                    "seen_term": seen.term,
                    "seen_renewals": seen.renewals,
                },
            )
        return None if row is None else _lease_of(row)

    def renew(self, term: int) -> bool:
        """Renews the lease; returns False if another term has begun.

        It need not wait for the disk: a lost renewal makes nobody lead.

        It does wait for a synchronous standby: that one may have been promoted, and a database that nobody confirms any
        more must keep nobody leading.
        """
        self._run(
            b"BEGIN; " + LOCAL_DISK_CAN_WAIT + b"; UPDATE leadership SET renewals = renewals + 1,"
            b" renewed_at = clock_timestamp() WHERE term = %d AND NOT released RETURNING term; COMMIT" % term
        )
        cursor = self._cursor
        cursor.nextset()
        cursor.nextset()
        return cursor.rowcount == 1

    def release(self, term: int) -> None:
        self._row(
            b"UPDATE leadership SET released = TRUE WHERE term = %(term)s RETURNING term", {"term": term}
        )

    def shared_file(self, name: str, sealed: str | None) -> str | None:
        """Returns the file that all orchestrators share; where there is none, `sealed` is stored first."""
        if sealed is not None:
            self._run(
                b"INSERT INTO shared_files (name, sealed) VALUES (%(name)s, %(sealed)s) ON CONFLICT DO NOTHING",
                {"name": name, "sealed": sealed},
            )
        row = self._row(b"SELECT sealed FROM shared_files WHERE name = %(name)s", {"name": name})
        return None if row is None else str(row[0])

    def replace_shared_file(self, name: str, sealed: str) -> None:
        self._run(
            b"INSERT INTO shared_files (name, sealed) VALUES (%(name)s, %(sealed)s)"
            b" ON CONFLICT (name) DO UPDATE SET sealed = EXCLUDED.sealed",
            {"name": name, "sealed": sealed},
        )

    def setting(self, key: str) -> str | None:
        """Returns a setting of the fleet; None also where the database has no fleet yet."""
        if self._row(b"SELECT 1 WHERE to_regclass('settings') IS NOT NULL") is None:
            return None
        row = self._row(b"SELECT value FROM settings WHERE key = %(key)s", {"key": key})
        return None if row is None else str(row[0])

    def _is_newer(self) -> bool:
        """Tells whether a newer release has used the database: then this one may forward requests, but not lead."""
        if self._row(b"SELECT 1 WHERE to_regclass('schema_version') IS NOT NULL") is None:
            return False
        row = self._row(b"SELECT max(version) FROM schema_version")
        return row is not None and row[0] is not None and int(row[0]) > self._newest_known

    def _now(self) -> float:
        row = self._row(b"SELECT extract(epoch FROM clock_timestamp())::float8")
        return float(row[0]) if row else 0.0

    def _row(self, sql: bytes, values: dict[str, str | int] | None = None) -> Row | None:
        self._run(sql, values)
        return self._cursor.fetchone()

    def _run(self, sql: bytes, values: dict[str, str | int] | None = None) -> None:
        try:
            connection = self._connected()
            self._cursor = connection.execute(sql, values, prepare=False)
        except psycopg.Error as error:
            self.close()  # also where it still stands: a transaction may be left open in it
            raise BookClosed(str(error).strip() or type(error).__name__) from error

    def _connected(self) -> PostgresConnection:
        if self._connection is None:
            connection = connected(self._conninfo)
            try:
                insist_on_durability(connection)
                connection.execute(f"SET statement_timeout = '{LONGEST_STATEMENT}'".encode())
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection


def _lease_of(row: Row) -> Lease:
    term, holder, url, fingerprint, renewals, released = row
    return Lease(
        term=term, holder=holder, url=url, fingerprint=fingerprint, renewals=renewals, released=released
    )
