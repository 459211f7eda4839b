"""Another program at the same database: it keeps the writer waiting, or changes rows under its feet."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg

from simpletuner_fleet.ports import JobFilter, Store, Tx, View
from simpletuner_fleet.store.postgres import PostgresStore
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.store.observing import Recorder, unmarked

LONG_S = 30.0
A_WHILE_S = 0.05
TABLES = "jobs, workers, attempts, audit, counters, settings, tallies, configs"


class Outsider(Protocol):
    def run(self, sql: str) -> None: ...
    def begin_alone(self) -> None:
        """Begins a transaction during which nobody else can write."""
        ...

    def close(self) -> None: ...


class SqliteOutsider:
    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=LONG_S)

    def run(self, sql: str) -> None:
        self._connection.execute(sql)

    def begin_alone(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def close(self) -> None:
        self._connection.close()


class PostgresOutsider:
    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)

    def run(self, sql: str) -> None:
        self._connection.execute(sql.encode())

    def begin_alone(self) -> None:
        self.run("BEGIN")
        self.run(f"LOCK TABLE {TABLES} IN EXCLUSIVE MODE")

    def close(self) -> None:
        self._connection.close()


class Rig:
    """A store, an observer of it, and somebody else at its database."""

    def __init__(self, store: Store, outsider: Outsider, reopen: Callable[[], Store]) -> None:
        self.outsider = outsider
        self.observer = Recorder()
        self._reopen = reopen
        self._use(store)

    def _use(self, store: Store) -> None:
        self.store = store
        self.store.observe(self.observer)

    @contextmanager
    def commits_held_up(self) -> Iterator[None]:
        self.outsider.begin_alone()
        try:
            yield
        finally:
            self.outsider.run("COMMIT")

    def spoil_workers(self) -> None:
        """Whatever batch changes a worker now will not be stored."""
        self.outsider.run("UPDATE workers SET version = version + 10")

    async def restart(self) -> None:
        await self.store.close()
        self._use(self._reopen())

    async def live_in_database(self) -> list[object]:
        return await self.store.read(live_rows)

    async def memory_equals_database(self) -> bool:
        """Compares what the observer holds, what a step sees, and what is stored."""
        stored = await self.live_in_database()
        in_memory = await self.store.write(lambda tx: live_rows_of_memory(tx, list(self.observer.jobs)))
        return of_live_jobs(self.observer.rows()) == of_live_jobs(in_memory) == of_live_jobs(stored)


def of_live_jobs(rows: list[Any]) -> list[object]:
    """Leaves out live attempts of jobs that have ended: no rule makes them, and loading sets them aside."""
    jobs, attempts, workers = rows
    return [jobs, {id: attempt for id, attempt in attempts.items() if attempt.job_id in jobs}, workers]


def live_rows(view: View) -> list[object]:
    jobs = {job.id: job for job in view.jobs_page(JobFilter(), None, 999) if not job.terminal}
    attempts = {attempt.id: attempt for attempt in view.live_attempts()}
    return [jobs, attempts, {worker.id: unmarked(worker) for worker in view.workers()}]


def live_rows_of_memory(tx: Tx, job_ids: list[str]) -> list[object]:
    """Asks for nothing that a step cannot have from memory."""
    attempts = {attempt.id: attempt for attempt in tx.live_attempts()}
    workers = {worker.id: unmarked(worker) for worker in tx.workers()}
    return [{job_id: tx.job(job_id) for job_id in job_ids}, attempts, workers]


@asynccontextmanager
async def sqlite_rig(path: Path, busy_timeout_s: float = LONG_S) -> AsyncIterator[Rig]:
    def reopen() -> Store:
        return SqliteStore(path, busy_timeout_s=busy_timeout_s)

    async with _closed_afterwards(Rig(reopen(), SqliteOutsider(path), reopen)) as rig:
        yield rig


@asynccontextmanager
async def postgres_rig(url: str) -> AsyncIterator[Rig]:
    def reopen() -> Store:
        return PostgresStore(url)

    async with _closed_afterwards(Rig(reopen(), PostgresOutsider(url), reopen)) as rig:
        yield rig


@asynccontextmanager
async def _closed_afterwards(rig: Rig) -> AsyncIterator[Rig]:
    try:
        yield rig
    finally:
        await rig.store.close()
        rig.outsider.close()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def a_while() -> None:
    """Long enough for a commit that nobody holds up."""
    await asyncio.sleep(A_WHILE_S)
