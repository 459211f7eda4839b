"""Implements the store in PostgreSQL, with the same one writer and group commit as in SQLite.

A second writer is kept out by its term, or by a lock.
"""

import logging
import re
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import psycopg
from psycopg import errors

from simpletuner_fleet.core.errors import IllegalTransition
from simpletuner_fleet.ports import ConcurrentChange, RowObserver, Tx, View
from simpletuner_fleet.store.failures import (
    BatchLost,
    Duplicate,
    StoreBusy,
    StoreRefused,
    rows_changed_by_others,
)
from simpletuner_fleet.store.postgres_connection import (
    LARGEST_MARK,
    PostgresConnection,
    connected,
    conninfo_of,
    insist_on_durability,
    take_lock,
    take_place,
    unusable,
)
from simpletuner_fleet.store.rows.batches import RowWrite
from simpletuner_fleet.store.sql import recordsets
from simpletuner_fleet.store.sql.database import Params, Row
from simpletuner_fleet.store.sql.migrate import migrate, migrations_for
from simpletuner_fleet.store.writing.pipeline import CommitPipeline
from simpletuner_fleet.store.writing.reader import Reader
from simpletuner_fleet.store.writing.scanners import SCANNERS, Scanners
from simpletuner_fleet.store.writing.sql_tx import SqlTx

T = TypeVar("T")
log = logging.getLogger(__name__)

PARAMETER = re.compile(r"(?<!:):([a-z_][a-z_0-9]*)")
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0
POINT_LOOKUPS = b"SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
"""A commit finds its few rows by their keys. A plan made while a table was small would read all of it for ever."""
ENDS_CONNECTION = ("FATAL", "PANIC")
"""How serious the last words are that a server says on a connection, such as to a leader that froze in a transaction."""
IDLE_IN_TRANSACTION = "5min"
"""By then a frozen leader's transaction ends also where whoever takes over may not end it. A leader that is well needs
seconds between two statements: all that waits becomes objects there."""


INSIST_ON_TERM = b"""
    WITH held AS (SELECT term FROM leadership WHERE term = %s FOR KEY SHARE) SELECT 1 / count(*) FROM held
"""
LEADS_NO_MORE = "Another orchestrator leads now; nothing was changed."
NOT_KNOWN_YET = -1
Sent = tuple["psycopg.Cursor[Row]", str]
"""A statement's cursor, and what it means where it divides by zero."""


class ServerFailed(BatchLost):
    """The server failed, or the way to it, and not a statement."""


@lru_cache(maxsize=1024)
def translated_for_psycopg(sql: str) -> bytes:
    """Translates `:name` to `%(name)s`, and the collation by bytes to its name in PostgreSQL."""
    plain = sql.replace("%", "%%").replace(" COLLATE BINARY", ' COLLATE "C"')
    return PARAMETER.sub(r"%(\1)s", plain).encode()


class PostgresSession:
    """Holds one connection to PostgreSQL, and connects again after it was lost.

    A session that writes holds the lock whenever it is connected.
    """

    def __init__(
        self, url: str, *, writes: bool, monotonic: Callable[[], float], term: int | None = None
    ) -> None:
        """Connects to the database.

        With a `term`, no transaction begins once another orchestrator leads, and no other one begins to lead during a
        transaction.
        """
        self._conninfo = conninfo_of(url)
        self._writes = writes
        self._term = term
        self._mark = secrets.randbelow(LARGEST_MARK)
        """Nobody else's: by it a new connection finds the one that it replaces."""
        self._monotonic = monotonic
        self._pause_s = FIRST_PAUSE_S
        self._next_try = monotonic()
        self._begin = b"BEGIN" if writes else b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        if term is not None:
            # In one round trip. The row is read again once it is locked, so its term holds until the commit.
            self._begin += f"; SELECT term FROM leadership WHERE term = {term:d} FOR KEY SHARE".encode()
        self._connection: PostgresConnection | None = self._connected()
        self._cursor = self._connection.cursor()
        self._types: dict[str, dict[str, str]] = {}
        self._sent: list[Sent] | None = None
        """The statements that were sent and whose answers nobody has waited for; None where each is waited for."""

    def _connected(self) -> PostgresConnection:
        connection = connected(self._conninfo)
        try:
            if self._writes:
                connection.execute(POINT_LOOKUPS, prepare=False)
                insist_on_durability(connection)
                take_place(connection, self._mark)
                take_lock(connection, shared=self._term is not None)
            if self._term is not None:
                setting = f"SET idle_in_transaction_session_timeout = '{IDLE_IN_TRANSACTION}'"
                connection.execute(setting.encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def rows(self, sql: str, params: Params) -> list[Row]:
        return self._ran(sql, params).fetchall()

    def row(self, sql: str, params: Params) -> Row | None:
        return self._ran(sql, params).fetchone()

    def run(self, sql: str, params: Params) -> int:
        if self._sent is not None:
            self._send(translated_for_psycopg(sql), params)
            return NOT_KNOWN_YET
        return self._ran(sql, params).rowcount

    def many(self, sql: str, params: Sequence[Params]) -> None:
        if len(params) == 1 or self._sent is not None:
            for one in params:
                self.run(sql, one)
            return
        try:
            self._cursor.executemany(translated_for_psycopg(sql), params)
        except psycopg.Error as error:
            raise _translated(error) from error

    def _ran(self, sql: str, params: Params) -> psycopg.Cursor[Row]:
        try:
            return self._cursor.execute(translated_for_psycopg(sql), params)
        except psycopg.Error as error:
            raise _translated(error) from error

    def script(self, text: str) -> None:
        self._plain(text.encode())

    def begin(self) -> None:
        if self._connection is None:
            self._reconnect()
        self._plain(self._begin)
        if self._term is not None and not self._still_leads():
            self.rollback()
            raise BatchLost(LEADS_NO_MORE)

    def _still_leads(self) -> bool:
        return bool(self._cursor.nextset()) and self._cursor.fetchone() is not None

    def _reconnect(self) -> None:
        """Connects again, at most once per pause, so that callers are refused at once instead of waiting in line."""
        if self._monotonic() < self._next_try:
            raise BatchLost("The database cannot be reached; nothing was changed.")
        try:
            self._connection = self._connected()
        except (psycopg.Error, StoreBusy) as error:
            self._next_try = self._monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            raise BatchLost(f"The database cannot be used; nothing was changed. ({error})") from error
        self._cursor = self._connection.cursor()
        self._pause_s = FIRST_PAUSE_S
        log.info("Connected to PostgreSQL again.")

    def begin_patiently(self) -> None:
        """Begins a transaction. PostgreSQL itself waits for a lock, as long as its lock_timeout says."""
        self.begin()

    @property
    def untidy(self) -> bool:
        return False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Sends a whole transaction before it waits for the first answer: one round trip instead of three.

        So it is the database that refuses to go on where a row is not as it has to be, or this term is over: whatever
        follows a statement that failed is passed over, the commit as well.
        """
        if self._connection is None:
            self._reconnect()
        try:
            with self._sent_at_once():
                self._send(b"BEGIN")
                if self._term is not None:
                    self._send(INSIST_ON_TERM, (self._term,), LEADS_NO_MORE)
                yield
                commit = self._send(b"COMMIT")
        except ServerFailed as failed:
            raise _unknown(failed) from failed
        _insist_on_commit(commit)

    @contextmanager
    def _sent_at_once(self) -> Iterator[None]:
        """Sends all statements inside before it waits for the first answer, and then raises what failed first."""
        assert self._connection is not None
        sent = self._sent = []
        try:
            with self._connection.pipeline():
                yield
        except psycopg.Error as error:
            raise _failure_of(sent, _first_of(error)) from error
        finally:
            self._sent = None

    def _send(
        self, statement: bytes, params: Params | Sequence[Any] | None = None, no_rows: str = ""
    ) -> psycopg.Cursor[Row]:
        """Sends a statement. One that insists on its rows divides by zero without them: then `no_rows` is what failed."""
        assert self._connection is not None
        assert self._sent is not None
        cursor = self._connection.cursor()
        self._sent.append((cursor, no_rows))
        return cursor.execute(statement, params)

    def write_rows(self, writes: Sequence[RowWrite]) -> None:
        if not writes or self._connection is None:
            return
        try:
            self._learn_types(writes)
        except psycopg.Error as error:
            raise _translated(error) from error
        if self._sent is None:
            with self._sent_at_once():
                self._send_rows(writes)
        else:
            self._send_rows(writes)

    def _send_rows(self, writes: Sequence[RowWrite]) -> None:
        for write in writes:
            statement, values = recordsets.statement(write, self._types[write.table.name])
            self._send(statement.encode(), values, rows_changed_by_others(write))

    def _learn_types(self, writes: Sequence[RowWrite]) -> None:
        """Asks for the column types once per table: they change only with a migration, and then the server restarts."""
        for name in {write.table.name for write in writes} - self._types.keys():
            self._types[name] = dict(self._cursor.execute(recordsets.TYPES_OF, (name,)).fetchall())

    def commit(self) -> None:
        try:
            self._plain(b"COMMIT")
        except BatchLost as lost:
            raise _unknown(lost) from lost
        _insist_on_commit(self._cursor)

    def _plain(self, sql: bytes) -> None:
        try:
            self._cursor.execute(sql, prepare=False)
        except psycopg.Error as error:
            raise _translated(error) from error

    def rollback(self) -> None:
        if self._connection is None:
            return
        try:
            self._cursor.execute(b"ROLLBACK", prepare=False)
        except psycopg.Error:
            log.warning("The connection to PostgreSQL was lost.")
            self._connection.close()
            self._connection = None

    def tidy(self) -> None:
        """Does nothing: PostgreSQL needs no upkeep from here."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _translated(error: psycopg.Error) -> Exception:
    match error:
        case errors.UniqueViolation():
            return Duplicate(error.diag.constraint_name or str(error))
        case errors.ForeignKeyViolation():
            return ConcurrentChange("the row names another one that is not there")
        case errors.TriggeredDataChangeViolation():
            return IllegalTransition(f"The database refused the change: {error.diag.message_primary}.")
        case errors.InFailedSqlTransaction():
            return ConcurrentChange("the step went on after a statement of it had failed")
        case errors.DiskFull():
            return BatchLost("The disk of the database is full; nothing was changed.")
        case errors.LockNotAvailable():
            return BatchLost("Another program has locked the database; nothing was changed.")
        case errors.SerializationFailure() | errors.DeadlockDetected():
            return BatchLost("PostgreSQL could not order this among other changes; nothing was changed.")
        case errors.ReadOnlySqlTransaction():
            return BatchLost("PostgreSQL may only be read here; nothing was changed.")
        case _ if _is_of_the_server(error):
            return ServerFailed(f"The database failed ({type(error).__name__}).")
        case _:
            return error


def _first_of(error: psycopg.Error) -> psycopg.Error:
    """Returns what failed first of what was sent at once: what comes after it is passed over, and says only that."""
    earlier = error.__context__
    return (
        _first_of(earlier)
        if isinstance(error, errors.PipelineAborted) and isinstance(earlier, psycopg.Error)
        else error
    )


def _failure_of(sent: Sequence[Sent], error: psycopg.Error) -> Exception:
    unanswered = next((no_rows for cursor, no_rows in sent if cursor.pgresult is None), "")
    return (
        BatchLost(unanswered)
        if isinstance(error, errors.DivisionByZero) and unanswered
        else _translated(error)
    )


def _unknown(lost: BatchLost) -> BatchLost:
    return BatchLost(f"{lost} It happened while committing, so the outcome is unknown.")


def _insist_on_commit(cursor: psycopg.Cursor[Row]) -> None:
    if cursor.statusmessage != "COMMIT":
        raise BatchLost("PostgreSQL rolled the transaction back; nothing was changed.")


def _is_of_the_server(error: psycopg.Error) -> bool:
    """Tells whether the server or the way to it failed, and not the statement."""
    of_the_way = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return of_the_way or error.diag.severity_nonlocalized in ENDS_CONNECTION


class PostgresStore:
    """Implements ports.Store in PostgreSQL."""

    def __init__(
        self,
        url: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        term: int | None = None,
    ) -> None:
        """Opens the database.

        With a `term`, others may have it open too, but only this term's writes are kept while it lasts.
        """
        try:
            writing = PostgresSession(url, writes=True, monotonic=monotonic, term=term)
        except psycopg.Error as error:
            raise unusable(error) from error
        try:
            migrate(writing, migrations_for("postgresql"))
            reading = PostgresSession(url, writes=False, monotonic=monotonic)
            scanning = [PostgresSession(url, writes=False, monotonic=monotonic) for _ in range(SCANNERS)]
        except BatchLost as lost:
            writing.close()
            raise StoreRefused(f"PostgreSQL cannot be used: {lost}") from lost
        except psycopg.Error as error:
            writing.close()
            raise unusable(error) from error
        except BaseException:
            writing.close()
            raise
        self._writer = CommitPipeline(writing, SqlTx(writing, None), statements_in_loop=False)
        self._short_reads = Reader(reading)
        self._reader = self._short_reads.lane("store-reader")
        self._scanners = Scanners(scanning)

    def observe(self, observer: RowObserver) -> None:
        self._writer.observe(observer)

    def find_trouble(self) -> str | None:
        return None

    @property
    def is_stored(self) -> bool:
        return self._writer.is_stored

    def write(self, step: Callable[[Tx], T]) -> Coroutine[Any, Any, T]:
        return self._writer.submit(step)

    async def read(self, look: Callable[[View], T]) -> T:
        return await self._reader.submit(look)

    def reading_for_s(self) -> float:
        return self._short_reads.reading_for_s()

    async def scan(self, look: Callable[[View], T]) -> T:
        return await self._scanners.submit(look)

    async def close(self) -> None:
        await self._reader.close()
        await self._scanners.close()
        await self._writer.close()
