"""Implements the store in one SQLite file. Nothing is acknowledged before it is on the disk.

One connection writes; others only read.
"""

import logging
import os
import re
import sqlite3
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from simpletuner_fleet.core.errors import IllegalTransition, StoreUnavailable
from simpletuner_fleet.ports import ConcurrentChange, RowObserver, Tx, View
from simpletuner_fleet.store.failures import (
    BatchLost,
    Duplicate,
    Locked,
    StoreRefused,
    rows_changed_by_others,
)
from simpletuner_fleet.store.rows.batches import RowWrite, write_in_chunks
from simpletuner_fleet.store.sql.database import Params, Row
from simpletuner_fleet.store.sql.migrate import migrate, migrations_for
from simpletuner_fleet.store.sqlite_file import (
    DISK_FULL,
    claimed,
    make_private,
    refuse_damaged,
    refuse_network_file_system,
    unusable,
)
from simpletuner_fleet.store.writing.pipeline import CommitPipeline
from simpletuner_fleet.store.writing.reader import Reader
from simpletuner_fleet.store.writing.scanners import SCANNERS, Scanners
from simpletuner_fleet.store.writing.sql_tx import SqlTx

T = TypeVar("T")
log = logging.getLogger(__name__)

PARAMETER = re.compile(r"(?<!:):([a-z_][a-z_0-9]*)")
BUSY_TIMEOUT_S = 5.0
PEEK_TIMEOUT_S = 0.1
LOCK_POLL_S = 0.005
CHECKPOINT_AT_BYTES = 16 * 1024 * 1024
"""The write-ahead log keeps this size: to write over what is on the disk already takes less than to give the blocks
back and have new ones, and it is as large as that again only when it has grown beyond it."""
CHECKPOINT_AND_WAIT_AT_BYTES = 64 * 1024 * 1024
CACHE_KIB = 32 * 1024
SCAN_CACHE_KIB = 8 * 1024
"""Who goes through all rows finds few of them again."""
CACHED_STATEMENTS = 512

UNIQUE_VIOLATIONS = frozenset({sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY})
PASSING_TROUBLE = {
    sqlite3.SQLITE_FULL: DISK_FULL,
    sqlite3.SQLITE_BUSY: "Another program has locked the database; nothing was changed.",
    sqlite3.SQLITE_LOCKED: "The database is locked; nothing was changed.",
    sqlite3.SQLITE_NOMEM: "There was not enough memory; nothing was changed.",
    sqlite3.SQLITE_READONLY: "The database may only be read; nothing was changed.",
    sqlite3.SQLITE_CANTOPEN: "A file of the database could not be opened; nothing was changed.",
}
LASTING_TROUBLE = {
    sqlite3.SQLITE_IOERR: "The disk that holds the database has failed to write or to sync",
    sqlite3.SQLITE_CORRUPT: "The database is damaged",
    sqlite3.SQLITE_NOTADB: "The database file is no longer a database",
}

NULLS: dict[None, None] = {}
sqlite3.register_adapter(type(None), NULLS.get)
"""sqlite3 asks None for methods that it does not have before it stores NULL, which takes longer than to store a text.
Whoever has an adapter is not asked, and this one returns None without a step of Python."""


@lru_cache(maxsize=1024)
def by_position(sql: str) -> tuple[str, Callable[[Params], Sequence[Any]]]:
    """Writes `?` for `:name`, which sqlite3 binds in half the time; also returns what puts the values in order."""
    names = PARAMETER.findall(sql)
    text = PARAMETER.sub("?", sql)
    if len(names) == 1:
        return text, lambda params: (params[names[0]],)
    return text, itemgetter(*names) if names else lambda params: ()


class SqliteSession:
    """Holds one connection to a SQLite file.

    After a failed sync it refuses for ever: nobody knows what the disk holds then.
    """

    def __init__(
        self,
        path: Path,
        *,
        writes: bool,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        cache_kib: int = CACHE_KIB,
    ) -> None:
        self._files = (path, path.with_name(path.name + "-wal"))
        self._wal = self._files[1]
        self._known_files: tuple[tuple[int, int], ...] | None = None
        self._writes = writes
        self._broken: str | None = None
        self._misplaced: str | None = None
        self._cache_kib = cache_kib
        self._begin = "BEGIN IMMEDIATE" if writes else "BEGIN"
        self._busy_timeout_s = busy_timeout_s
        # Opened here, used in one other thread from then on.
        self._connection = sqlite3.connect(
            path,
            timeout=busy_timeout_s,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=CACHED_STATEMENTS,
        )
        self._execute = self._connection.execute

    def prepare(self) -> None:
        """Sets the connection up. Only the writer checkpoints, and it does so itself between batches."""
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            "wal_autocheckpoint = 0",
            f"journal_size_limit = {CHECKPOINT_AT_BYTES}",
            "mmap_size = 0",
            f"cache_size = -{self._cache_kib}",
            "temp_store = MEMORY",
            f"query_only = {'OFF' if self._writes else 'ON'}",
        ):
            self._execute(f"PRAGMA {pragma}").fetchall()

    def refuse_damaged(self, path: Path) -> None:
        refuse_damaged(self._connection, path)

    def rows(self, sql: str, params: Params) -> list[Row]:
        try:
            return self._ran(sql, params).fetchall()
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def row(self, sql: str, params: Params) -> Row | None:
        try:
            rows: list[Row] = self._ran(sql, params).fetchmany(1)
        except sqlite3.Error as error:
            raise self._translated(error) from error
        return rows[0] if rows else None

    def run(self, sql: str, params: Params) -> int:
        try:
            return self._ran(sql, params).rowcount
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def _ran(self, sql: str, params: Params) -> sqlite3.Cursor:
        text, lined_up = by_position(sql)
        return self._execute(text, lined_up(params))

    def many(self, sql: str, params: Sequence[Params]) -> None:
        for each in params:
            self.run(sql, each)

    def write_rows(self, writes: Sequence[RowWrite]) -> None:
        for write in writes:
            touched = write_in_chunks(write, self._run_positional)
            if write.exact and touched != len(write.rows):
                raise BatchLost(rows_changed_by_others(write))

    def _run_positional(self, sql: str, values: Sequence[Any]) -> int:
        try:
            return self._execute(sql, values).rowcount
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def script(self, text: str) -> None:
        """Runs it statement by statement, since `executescript` would commit first."""
        statement = ""
        for line in text.splitlines(keepends=True):
            statement += line
            if sqlite3.complete_statement(statement):
                self.run(statement, {})
                statement = ""
        if statement.strip():
            self.run(statement, {})

    def begin(self) -> None:
        trouble = self.find_trouble()
        if trouble:
            raise BatchLost(trouble)
        self._plain(self._begin)

    def find_trouble(self) -> str | None:
        """Returns why nothing can be written any more until a restart, if that is so.

        If a file of the database is removed from its folder, this process would go on writing to a file that nobody
        can find. What was written there so far is moved into the database when the connection is closed.
        """
        if not (self._broken or self._misplaced) and self._known_files not in (
            None,
            _identities(self._files),
        ):
            self._misplaced = "A file of the database was removed or replaced while it was in use."
            log.critical("The store takes no more writes. %s", self._misplaced)
        return self._broken or self._misplaced

    def know_files(self) -> None:
        self._known_files = _identities(self._files)

    def begin_patiently(self) -> None:
        """Begins a transaction, waiting for another program's lock up to a limit."""
        deadline = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                return self.begin()
            except Locked:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(LOCK_POLL_S)

    def never_wait(self) -> None:
        """Makes the connection report another program's lock at once, from here on."""
        self._execute("PRAGMA busy_timeout = 0").fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.begin_patiently()
        yield
        self.commit()

    def commit(self) -> None:
        self._plain("COMMIT")

    def _plain(self, sql: str) -> None:
        try:
            self._execute(sql)
        except sqlite3.Error as error:
            translated = self._translated(error)
            raise translated if isinstance(translated, BatchLost) else BatchLost(str(error)) from error

    def rollback(self) -> None:
        """Ends the transaction. SQLite may have rolled back already, as it does when the disk is full."""
        try:
            if self._connection.in_transaction:
                self._execute("ROLLBACK")
        except sqlite3.Error as error:
            self._break(f"A transaction could not be rolled back ({error}).")

    @property
    def untidy(self) -> bool:
        return self._writes and self._broken is None and self._wal_size() > CHECKPOINT_AT_BYTES

    def tidy(self) -> None:
        if self.untidy:
            self._checkpoint("TRUNCATE" if self._wal_size() >= CHECKPOINT_AND_WAIT_AT_BYTES else "PASSIVE")

    def _wal_size(self) -> int:
        try:
            return os.stat(self._wal).st_size
        except FileNotFoundError:
            return 0

    def _checkpoint(self, mode: str) -> None:
        try:
            self.rows(f"PRAGMA wal_checkpoint({mode})", {})
        except BatchLost as trouble:
            log.warning("The write-ahead log could not be checkpointed: %s", trouble)

    def close(self) -> None:
        if self._writes and self._broken is None:
            self._checkpoint("TRUNCATE")
        self._connection.close()

    def _translated(self, error: sqlite3.Error) -> Exception:
        code: int | None = getattr(error, "sqlite_errorcode", None)
        if code is None:
            return error
        if code in UNIQUE_VIOLATIONS:
            return Duplicate(str(error))
        if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
            return IllegalTransition(f"The database refused the change: {error}.")
        if code == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY:
            return ConcurrentChange("the row names another one that is not there")
        primary = code & 0xFF
        if primary in LASTING_TROUBLE:
            return BatchLost(
                self._break(
                    f"{LASTING_TROUBLE[primary]} ({error}): whether the last changes were kept is unknown until a restart."
                )
            )
        if primary == sqlite3.SQLITE_BUSY:
            return Locked(PASSING_TROUBLE[primary])
        if primary in PASSING_TROUBLE:
            return BatchLost(PASSING_TROUBLE[primary])
        return error

    def _break(self, why: str) -> str:
        """Notes that a writer must not go on after this; a reader only reports it."""
        if self._writes and self._broken is None:
            self._broken = why
            log.critical("The store takes no more writes. %s", why)
        return why


def _identities(files: Sequence[Path]) -> tuple[tuple[int, int], ...]:
    """Returns which files these names refer to now; empty where one of them is missing."""
    identities = []
    for file in files:
        try:
            status = os.stat(file)
        except OSError:
            return ()
        identities.append((status.st_dev, status.st_ino))
    return tuple(identities)


class SqliteStore:
    """Implements ports.Store in one SQLite file."""

    def __init__(self, path: Path | str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        file = Path(path).absolute()
        file.parent.mkdir(parents=True, exist_ok=True)
        file = file.resolve()
        refuse_network_file_system(file)
        self._claim = claimed(file)
        try:
            make_private(file)
            writing = _opened_for_writing(file, busy_timeout_s)
            reading = _opened_for_reading(file, busy_timeout_s)
            scanning = [_opened_for_reading(file, busy_timeout_s, SCAN_CACHE_KIB) for _ in range(SCANNERS)]
            peeking = _opened_for_reading(file, PEEK_TIMEOUT_S)
        except BatchLost as lost:
            os.close(self._claim)
            raise StoreRefused(f"The database {file} cannot be used: {lost}") from lost
        except sqlite3.Error as error:
            os.close(self._claim)
            raise unusable(file, error) from error
        except BaseException:
            os.close(self._claim)
            raise
        writing.know_files()
        self._writing = writing
        self._peeking = Reader(peeking)
        self._writer = CommitPipeline(writing, SqlTx(writing, peeking), statements_in_loop=True)
        self._short_reads = Reader(reading)
        self._reader = self._short_reads.lane("store-reader")
        self._scanners = Scanners(scanning)
        self._closed = False

    def observe(self, observer: RowObserver) -> None:
        self._writer.observe(observer)

    @property
    def is_stored(self) -> bool:
        return self._writer.is_stored

    def find_trouble(self) -> str | None:
        return self._writing.find_trouble()

    def write(self, step: Callable[[Tx], T]) -> Coroutine[Any, Any, T]:
        return self._writer.submit(step)

    async def read(self, look: Callable[[View], T]) -> T:
        return await self._reader.submit(look)

    def reading_for_s(self) -> float:
        return self._short_reads.reading_for_s()

    async def scan(self, look: Callable[[View], T]) -> T:
        return await self._scanners.submit(look)

    def read_now(self, look: Callable[[View], T]) -> T:
        """Reads a few rows without handing the work to a thread, which would cost more than reading them."""
        if self._closed:
            raise StoreUnavailable("The store is closed.")
        try:
            return self._peeking.look(look)
        except BatchLost as lost:
            raise StoreUnavailable(str(lost)) from lost

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # Steps that still run may peek. The writer goes last: the last connection to close checkpoints.
        await self._writer.finish()
        await self._reader.close()
        await self._scanners.close()
        self._peeking.close()
        await self._writer.close()
        os.close(self._claim)


def _opened_for_writing(file: Path, busy_timeout_s: float) -> SqliteSession:
    session = SqliteSession(file, writes=True, busy_timeout_s=busy_timeout_s)
    try:
        session.refuse_damaged(file)
        session.prepare()
        migrate(session, migrations_for("sqlite"))
        session.never_wait()
    except BaseException:
        session.close()
        raise
    return session


def _opened_for_reading(file: Path, busy_timeout_s: float, cache_kib: int = CACHE_KIB) -> SqliteSession:
    session = SqliteSession(file, writes=False, busy_timeout_s=busy_timeout_s, cache_kib=cache_kib)
    session.prepare()
    return session
