"""The lease in PostgreSQL, and the writes that it lets through."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.leadership import Lease
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.store.failures import StoreBusy, StoreRefused
from simpletuner_fleet.store.lease_book import BookClosed, PostgresLeaseBook
from simpletuner_fleet.store.postgres import PostgresSession, PostgresStore
from simpletuner_fleet.store.writing.sql_tx import NeedsConnection
from tests.stop_watch import StopWatch
from tests.store.outsider import until
from tests.store.pooler import TransactionPooler
from tests.store.samples import worker

SLOW_COMMIT = b"""
CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(3); RETURN NULL; END';
CREATE CONSTRAINT TRIGGER slow_commit AFTER INSERT ON workers DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION wait()
"""
COMMITTING = b"SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND query = 'COMMIT' AND state = 'active'"


@pytest.fixture
def book(postgres_database: str) -> Iterator[PostgresLeaseBook]:
    opened = PostgresLeaseBook(postgres_database)
    opened.open()
    yield opened
    opened.close()


def taken(book: PostgresLeaseBook, holder: str) -> Lease:
    lease = book.take(book.look(), holder, f"http://{holder}", "")
    assert lease is not None
    return lease


def test_the_first_who_comes_leads_and_the_second_sees_who_it_is(book: PostgresLeaseBook) -> None:
    assert book.look() is None
    lease = taken(book, "a")
    assert book.look() == lease
    assert book.take(None, "b", "http://b", "") is None


def test_a_renewal_keeps_whoever_saw_an_older_one_from_taking_over(book: PostgresLeaseBook) -> None:
    lease = taken(book, "a")
    assert book.renew(lease.term)
    assert book.take(lease, "b", "http://b", "") is None
    successor = taken(book, "b")
    assert successor.term > lease.term
    assert not book.renew(lease.term)
    assert book.renew(successor.term)


def test_what_was_given_back_is_not_renewed(book: PostgresLeaseBook) -> None:
    lease = taken(book, "a")
    book.release(lease.term)
    seen = book.look()
    assert seen is not None
    assert seen.released
    assert not book.renew(lease.term)


def test_a_program_older_than_the_database_does_not_stand(book: PostgresLeaseBook) -> None:
    book._run(b"CREATE TABLE schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL)")
    book._run(b"INSERT INTO schema_version VALUES (9999, 'tomorrow')")
    assert book.take(None, "a", "http://a", "") is None


def test_two_that_start_at_once_make_the_tables_once(postgres_database: str) -> None:
    failures: list[BaseException] = []

    def open_one() -> None:
        opened = PostgresLeaseBook(postgres_database)
        try:
            opened.open()
        except BaseException as error:
            failures.append(error)
        finally:
            opened.close()

    threads = [threading.Thread(target=open_one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_database_that_is_gone_is_told_and_found_again(book: PostgresLeaseBook) -> None:
    taken(book, "a")
    with psycopg.connect(book._conninfo, autocommit=True) as admin:
        admin.execute(
            b"SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            b" WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    with pytest.raises(BookClosed):
        book.look()
    assert book.look() is not None


def test_a_pooler_that_changes_sessions_between_transactions_is_refused_with_a_sentence(
    postgres_database: str,
) -> None:
    parts = urlsplit(postgres_database)
    folder = parse_qs(parts.query)["host"][0]
    with TransactionPooler(f"{folder}/.s.PGSQL.5432") as pooler:
        through = f"postgresql://{parts.username}@127.0.0.1:{pooler.port}{parts.path}?sslmode=disable"
        with pytest.raises(StoreRefused, match="pool_mode = transaction"):
            PostgresLeaseBook(through).open()


async def test_a_write_of_an_ended_term_changes_nothing(
    book: PostgresLeaseBook, postgres_database: str
) -> None:
    old = PostgresStore(postgres_database, term=taken(book, "a").term)
    await old.write(lambda tx: tx.put_setting("who", "old"))
    new = PostgresStore(postgres_database, term=taken(book, "b").term)
    try:
        with pytest.raises(StoreUnavailable, match="Another orchestrator leads"):
            await old.write(lambda tx: tx.put_setting("who", "late"))
        await new.write(lambda tx: tx.put_setting("who", "new"))
        assert await new.read(lambda view: view.setting("who")) == "new"
    finally:
        await old.close()
        await new.close()


async def test_what_was_decided_in_memory_is_not_stored_once_the_term_has_ended(
    book: PostgresLeaseBook, postgres_database: str
) -> None:
    """Such a transaction is sent as a whole: its commit must not follow if the term is over."""
    old = PostgresStore(postgres_database, term=taken(book, "a").term)
    await old.write(lambda tx: tx.add_worker(worker(1)))
    taken(book, "b")
    with pytest.raises(StoreUnavailable, match="Another orchestrator leads"):
        await old.write(lambda tx: tx.add_worker(worker(2)))
    assert [one.id for one in await old.read(lambda view: view.workers())] == ["w_1"]
    await old.close()


async def test_a_takeover_waits_for_the_write_under_way_and_ends_a_frozen_one(
    book: PostgresLeaseBook, postgres_database: str
) -> None:
    """A leader that stopped between two statements of a transaction holds nobody up."""
    lease = taken(book, "a")
    store = PostgresStore(postgres_database, term=lease.term)
    session = store._writer._session
    session.begin()
    with StopWatch() as watch:
        successor = book.take(lease, "b", "http://b", "")
        waited_s = watch.elapsed_s
    assert successor is not None
    assert waited_s < 0.4
    session.rollback()
    await store.close()


async def test_renewals_and_writes_do_not_wait_for_each_other(
    book: PostgresLeaseBook, postgres_database: str
) -> None:
    lease = taken(book, "a")
    store = PostgresStore(postgres_database, term=lease.term)
    session = store._writer._session
    session.begin()
    with StopWatch() as watch:
        assert book.renew(lease.term)
        assert watch.elapsed_s < 0.4
    session.rollback()
    await store.close()


async def test_who_leads_by_a_term_and_who_needs_the_database_alone_keep_each_other_out(
    book: PostgresLeaseBook, postgres_database: str
) -> None:
    leading = PostgresStore(postgres_database, term=taken(book, "a").term)
    with pytest.raises(StoreBusy):
        PostgresStore(postgres_database)
    await leading.close()
    alone = PostgresStore(postgres_database)
    with pytest.raises(StoreBusy):
        PostgresStore(postgres_database, term=taken(book, "b").term)
    await alone.close()


async def test_what_a_lost_connection_was_committing_is_settled_before_memory_is_loaded_again(
    book: PostgresLeaseBook, postgres_database: str
) -> None:
    """The server goes on with a commit whose caller is gone: what was loaded before its end would lack its rows."""
    store = PostgresStore(postgres_database, term=taken(book, "a").term)
    session = store._writer._session
    assert isinstance(session, PostgresSession)
    assert session._connection is not None
    with psycopg.connect(postgres_database, autocommit=True) as outsider:
        outsider.execute(SLOW_COMMIT)
        writing = asyncio.create_task(store.write(lambda tx: tx.add_worker(worker(1))))
        await until(lambda: outsider.execute(COMMITTING).fetchone())
        with socket.socket(fileno=os.dup(session._connection.fileno())) as line:
            line.shutdown(socket.SHUT_RDWR)
        with pytest.raises(StoreUnavailable, match="outcome is unknown"):
            await writing
        remembered = await store.write(lambda tx: tx.worker("w_1"))
        await until(lambda: not outsider.execute(COMMITTING).fetchone())
        assert await store.read(lambda view: view.worker("w_1")) == remembered
    await store.close()


async def test_a_leader_whose_transaction_was_ended_for_the_next_one_says_that_the_store_was_away(
    book: PostgresLeaseBook, postgres_database: str
) -> None:
    lease = taken(book, "a")
    store = PostgresStore(postgres_database, term=lease.term)

    def overtaken(tx: Tx) -> None:
        if not tx.directly:  # type: ignore[attr-defined]
            raise NeedsConnection
        assert book.take(lease, "b", "http://b", "") is not None
        tx.put_setting("k", "v")

    with pytest.raises(StoreUnavailable):
        await store.write(overtaken)
    with pytest.raises(StoreUnavailable, match="Another orchestrator leads"):
        await store.write(lambda tx: tx.put_setting("k", "w"))
    assert await store.read(lambda view: view.setting("k")) is None
    await store.close()


async def test_whoever_did_not_see_the_last_renewal_ends_no_transaction_of_the_leader(
    book: PostgresLeaseBook, postgres_database: str
) -> None:
    lease = taken(book, "a")
    store = PostgresStore(postgres_database, term=lease.term)

    def challenged(tx: Tx) -> None:
        if not tx.directly:  # type: ignore[attr-defined]
            raise NeedsConnection
        assert book.renew(lease.term)
        assert book.take(lease, "b", "http://b", "") is None
        tx.put_setting("k", "v")

    await store.write(challenged)
    assert await store.read(lambda view: view.setting("k")) == "v"
    await store.close()


async def test_a_step_that_takes_long_with_its_connection_is_not_ended_by_the_database(
    book: PostgresLeaseBook, postgres_database: str
) -> None:
    """To turn all waiting jobs or the charges of a month into objects takes seconds between two statements."""
    store = PostgresStore(postgres_database, term=taken(book, "a").term)
    [limit] = store._writer._session.rows(
        "SELECT setting::integer FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'", {}
    )
    assert limit[0] >= 60_000
    await store.close()
