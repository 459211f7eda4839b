"""Makes every connection to PostgreSQL."""

from typing import Any

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.string import StrDumper

from simpletuner_fleet.store.failures import StoreBusy, StoreRefused
from simpletuner_fleet.store.rows.text import storable
from simpletuner_fleet.store.sql.database import Row

PostgresConnection = psycopg.Connection[Row]
LOCK_SPACE = 0x53544654
"""Our own half of the advisory lock's number; the other half is the schema's."""
LOCK_TIMEOUT = "5s"
NOTICE_SILENCE = b"""
SELECT set_config(name, value, FALSE) FROM pg_settings JOIN (VALUES ('tcp_keepalives_idle', '10'),
    ('tcp_keepalives_interval', '3'), ('tcp_keepalives_count', '3'), ('tcp_user_timeout', '15000')) AS wanted (name, value)
    USING (name)
"""
"""Without it a server keeps for two hours what a machine held that lost its power, and keeps its successor out."""
END_FORMER = b"""
SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1 AND pid <> pg_backend_pid()
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = (%(mark)s::bigint >> 32)::oid AND objid = (%(mark)s::bigint & 4294967295)::oid
"""
LARGEST_MARK = 2**62
CONNECTION_DEFAULTS: dict[str, str | int | None] = {
    "application_name": "simpletuner-fleet",
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    # A standby that answers first after a failover takes no writes, and shows what was true a while ago.
    "target_session_attrs": "read-write",
}


class StorableStrDumper(StrDumper):
    """Replaces what PostgreSQL refuses in a string, such as NUL, before the string is sent.

    A name looked up with a NUL in it is simply not there.
    """

    def dump(self, obj: str) -> Any:
        return super().dump(storable(obj))


def conninfo_of(url: str, **more: str | int | None) -> str:
    return make_conninfo("", **(CONNECTION_DEFAULTS | more | conninfo_to_dict(url)))


def connected(conninfo: str) -> PostgresConnection:
    connection: PostgresConnection = psycopg.connect(conninfo, autocommit=True)
    try:
        connection.prepare_threshold = 0
        connection.prepared_max = 500
        connection.adapters.register_dumper(str, StorableStrDumper)
        connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'".encode())
        connection.execute(b"SET jit = off")
        connection.execute(NOTICE_SILENCE)
    except BaseException:
        connection.close()
        raise
    return connection


def unusable(error: psycopg.Error) -> StoreRefused:
    return StoreRefused(
        f"PostgreSQL cannot be used: {error}",
        next_step="Check SIMPLETUNER_DATABASE_URL and that the server is up.",
    )


def insist_on_durability(connection: PostgresConnection) -> None:
    """Makes commits wait for the disk. Stronger settings, such as waiting for a standby, stay as they are."""
    row = connection.execute(b"SHOW synchronous_commit").fetchone()
    if row is not None and row[0] == "off":
        connection.execute(b"SET synchronous_commit = on")


def take_place(connection: PostgresConnection, mark: int) -> None:
    """Takes the place of the former connection with this mark: ends it if the server still has it, and awaits its end.

    A server goes on with a commit whose caller is gone. Only then it is certain whether that was kept, and whoever read
    the rows before would not know of it.
    """
    connection.execute(END_FORMER, {"mark": mark})
    connection.execute(b"SELECT pg_advisory_lock(%s)", (mark,))


def take_lock(connection: PostgresConnection, *, shared: bool) -> None:
    """Takes the lock for the session: it ends with the connection, so a dead orchestrator never blocks the next.

    Orchestrators that lead by a term share it, and their term keeps them apart; one without a term needs the database
    to itself. It waits a little: the database may need a moment to notice that the previous process was killed.
    """
    function = b"pg_advisory_lock_shared" if shared else b"pg_advisory_lock"
    try:
        connection.execute(b"SELECT " + function + b"(%s, hashtext(current_schema()))", (LOCK_SPACE,))
    except errors.LockNotAvailable:
        raise StoreBusy from None


def insist_on_one_session(conninfo: str) -> None:
    """Refuses a pooler that changes a client's session after each transaction: locks and settings are per session."""
    with psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as one:
        if _session_of(one) == one.info.backend_pid:
            return  # nobody is in between
        mine = _session_of(one)
        with (
            psycopg.connect(conninfo, autocommit=True, prepare_threshold=None) as other,
            other.transaction(),
        ):
            _session_of(other)
            if _session_of(one) == mine:
                return
    raise StoreRefused(
        "The connection to PostgreSQL goes through a pooler that changes the session between transactions"
        " (PgBouncer with pool_mode = transaction).",
        next_step="Connect to PostgreSQL itself, or through a pool with pool_mode = session.",
    )


def _session_of(connection: PostgresConnection) -> int:
    row = connection.execute(b"SELECT pg_backend_pid()", prepare=False).fetchone()
    return int(row[0]) if row else 0
