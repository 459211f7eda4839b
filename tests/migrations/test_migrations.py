"""A database of any age is carried forward with its rows; one from the future is left alone."""

import sqlite3
from pathlib import Path

import psycopg
import pytest

from simpletuner_fleet.core.audit import ChainCheck
from simpletuner_fleet.core.errors import IllegalTransition
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.jobs.progress import Progress
from simpletuner_fleet.ports import Store, View
from simpletuner_fleet.store.failures import StoreRefused
from simpletuner_fleet.store.opening import open_store
from simpletuner_fleet.store.postgres import PostgresSession
from simpletuner_fleet.store.sql.database import SqlSession
from simpletuner_fleet.store.sql.migrate import Migration, migrate, migrations_for, reachable_pairs
from simpletuner_fleet.store.sqlite import SqliteSession

VERSION_1 = Path(__file__).parent / "version_1.sql"
BUNDLE = {"sqlite": "X'7b7d'", "postgresql": "'\\x7b7d'::bytea"}


class Database:
    """One empty database: opened as a store, as a session, or with plain SQL."""

    def __init__(self, dialect: str, url: str) -> None:
        self.dialect = dialect
        self.url = url

    def store(self) -> Store:
        return open_store(self.url)

    def session(self) -> SqlSession:
        if self.dialect == "sqlite":
            return SqliteSession(Path(self.url.removeprefix("sqlite:///")), writes=True)
        return PostgresSession(self.url, writes=True, monotonic=lambda: 0.0)

    def script(self, text: str) -> None:
        session = self.session()
        session.begin()
        session.script(text)
        session.commit()
        session.close()

    def fill_as_version_1_did(self) -> None:
        self.script(VERSION_1.read_text(encoding="utf-8").replace(":bundle", BUNDLE[self.dialect]))

    def value(self, sql: str) -> object:
        if self.dialect == "sqlite":
            connection = sqlite3.connect(self.url.removeprefix("sqlite:///"))
            row = connection.execute(sql).fetchone()
            connection.close()
            return row[0]
        with psycopg.connect(self.url) as postgres:
            first_row = postgres.execute(sql.encode()).fetchone()
        assert first_row is not None
        return first_row[0]

    def migrate(self, migrations: list[Migration]) -> None:
        session = self.session()
        try:
            migrate(session, migrations)
        finally:
            session.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        return Database("sqlite", f"sqlite:///{tmp_path}/fleet.db")
    return Database("postgresql", request.getfixturevalue("postgres_database"))


def test_both_databases_have_the_same_migrations_numbered_without_gaps() -> None:
    sqlite, postgresql = migrations_for("sqlite"), migrations_for("postgresql")
    assert [(each.number, each.name) for each in sqlite] == [(each.number, each.name) for each in postgresql]
    assert [each.number for each in sqlite] == list(range(1, len(sqlite) + 1))


async def test_a_database_at_version_1_is_carried_forward_with_its_rows(database: Database) -> None:
    """The rows were written by version 1 and are never edited, so every later migration must carry them."""
    database.migrate(migrations_for(database.dialect)[:1])
    database.fill_as_version_1_did()
    store = database.store()
    queued = await store.read(lambda view: view.job("j_queued"))
    done = await store.read(lambda view: view.job("j_done"))
    assert queued is not None
    assert done is not None
    assert (queued.state, queued.rank, queued.requires.gpus) == (JobState.QUEUED, -5.5, 2)
    assert (done.state, done.progress, done.version) == (JobState.COMPLETED, Progress(step=10), 3)
    assert await store.read(lambda view: view.job_bundle("j_done")) == b"{}"
    (attempt,) = await store.read(lambda view: view.attempts_of_job("j_done"))
    assert (attempt.id, attempt.checkpoint_step, attempt.failure_class) == ("a_1", None, None)
    assert await store.read(lambda view: view.manifests_of_job("j_done")) == []
    worker = await store.read(lambda view: view.worker_by_name("GPU-1"))
    assert worker is not None
    assert (worker.labels, worker.gpus[0].vram_gb) == ({"team": "nlp"}, 80.0)
    assert await store.read(lambda view: view.job_counts()) == {"queued": 1, "completed": 1}
    config = await store.read(lambda view: view.config("sdxl"))
    assert config is not None
    assert config.version == 2
    assert await store.read(lambda view: view.setting("limit")) == "4"
    assert await store.write(lambda tx: (tx.next_seq(), tx.next_epoch())) == (3, 8)
    check = ChainCheck([])
    check.feed(await store.read(lambda view: view.audit_range(0, 100)))
    assert (check.finish(), check.checked) == ([], 2)
    await store.close()


async def test_opening_again_changes_nothing(database: Database) -> None:
    for _ in range(2):
        await database.store().close()
    newest = migrations_for(database.dialect)[-1].number
    assert database.value("SELECT count(*) FROM schema_version") == newest
    assert database.value("SELECT max(version) FROM schema_version") == newest


async def test_a_database_from_the_future_is_refused_and_left_alone(database: Database) -> None:
    await database.store().close()
    database.script("INSERT INTO schema_version (version, name) VALUES (9999, 'from the future');")
    with pytest.raises(StoreRefused, match="9999"):
        database.store()
    assert database.value("SELECT max(version) FROM schema_version") == 9999


def test_a_migration_that_fails_halfway_is_rolled_back_whole(database: Database) -> None:
    known = migrations_for(database.dialect)
    number = known[-1].number + 1
    broken = Migration(number, "broken", "CREATE TABLE half (x INTEGER);\nINSERT INTO nowhere VALUES (1);")
    with pytest.raises((sqlite3.OperationalError, psycopg.Error)):
        database.migrate([*known, broken])
    assert database.value("SELECT max(version) FROM schema_version") == known[-1].number
    mended = Migration(number, "mended", "CREATE TABLE half (x INTEGER);\nINSERT INTO half VALUES (7);")
    database.migrate([*known, mended])
    assert database.value("SELECT x FROM half") == 7


def refused(database: Database, sql: str) -> None:
    session = database.session()
    session.begin()
    try:
        with pytest.raises(IllegalTransition):
            session.run(sql, {})
    finally:
        session.rollback()
        session.close()


async def test_the_database_itself_refuses_an_edge_the_machine_does_not_have(database: Database) -> None:
    database.migrate(migrations_for(database.dialect)[:1])
    database.fill_as_version_1_did()
    await database.store().close()
    refused(database, "UPDATE jobs SET state = 'queued' WHERE id = 'j_done'")
    refused(database, "UPDATE jobs SET state = 'nonsense' WHERE id = 'j_queued'")
    database.script("UPDATE jobs SET state = 'dispatched' WHERE id = 'j_queued';")
    assert database.value("SELECT count(*) FROM job_edges") == len(reachable_pairs())


async def test_edges_and_counts_follow_the_code_and_the_rows_at_every_start(database: Database) -> None:
    await database.store().close()
    database.script("DELETE FROM job_edges;\nINSERT INTO job_edges VALUES ('completed', 'queued');")
    database.script("INSERT INTO tallies (kind, key, n) VALUES ('job', 'running', 5);")
    store = database.store()
    assert await store.read(lambda view: view.job_counts()) == {}
    await store.close()
    assert database.value("SELECT count(*) FROM job_edges WHERE from_state = 'completed'") == 0


async def test_pools_and_machines_that_counted_in_dollars_count_in_millionths(database: Database) -> None:
    known = migrations_for(database.dialect)
    database.migrate([each for each in known if each.number < 20])
    request = '{"provider": "process", "max_price": 1.89, "max_hourly": null, "max_daily": 0.1, "max_monthly": null}'
    pool = (
        f'{{"name": "p", "request": {request}, "created_at": 1.0, "created_by": "u",'
        ' "no_machine": {"x": {"code": "C"}}}'
    )
    machine = (
        '{"id": "m", "pool": "p", "name": "n", "state": "joined", "created_at": 1.5, "offered_price": 0.3,'
        ' "rates": [[1.5, 0.3], [2.5, 2]]}'
    )
    unmade = machine.replace('"m"', '"o"').replace("[[1.5, 0.3], [2.5, 2]]", "[]")
    database.script(f"INSERT INTO pools (name, document) VALUES ('p', '{pool}');")
    for id, row in (("m", machine), ("o", unmade)):
        database.script(f"INSERT INTO machines (id, join_hash, document) VALUES ('{id}', '', '{row}');")
    store = database.store()
    kept = await store.read(lambda view: view.pool("p"))
    assert kept is not None
    limits = kept.request.max_price_micros, kept.request.max_daily_micros, kept.request.max_hourly_micros
    assert (limits, kept.no_machine) == ((1_890_000, 100_000, None), {})
    (first, second) = await store.read(lambda view: view.machines_since(0.0))
    assert (first.offered_micros, first.rates) == (300_000, ((1.5, 300_000), (2.5, 2_000_000)))
    assert second.rates == ()
    await store.close()


async def test_what_waiting_jobs_have_cost_counts_towards_a_ceiling_that_they_are_given_later(
    database: Database,
) -> None:
    known = migrations_for(database.dialect)
    database.migrate(known[:1])
    database.fill_as_version_1_did()
    database.migrate([each for each in known if each.number < 27])
    database.script(
        "UPDATE attempts SET job_id = 'j_queued', hourly_micros = 3000000, accepted_at = 1000.0, ended_at = 2200.0,"
        " state = 'ended', gpus = '[\"GPU-1\"]' WHERE id = (SELECT min(id) FROM attempts);"
    )
    await database.store().close()
    spent = "SELECT spent_micros FROM jobs WHERE id = '{}'"
    assert database.value(spent.format("j_queued")) == 1_000_000
    assert database.value(spent.format("j_done")) == 0, "what is over is not counted again"
    assert database.value("SELECT max_cost_micros FROM jobs WHERE id = 'j_queued'") is None


async def test_what_was_stored_before_it_was_tallied_is_counted_once(database: Database) -> None:
    known = migrations_for(database.dialect)
    database.migrate(known[:1])
    database.fill_as_version_1_did()
    database.migrate([each for each in known if each.number < 30])
    database.script("UPDATE jobs SET owner = 'u_ann', team = 't_vision' WHERE id = 'j_done';")
    database.script("UPDATE jobs SET owner = 'u_bob' WHERE id = 'j_queued';")
    for job_id, content, size in (("j_done", "a", 2**40), ("j_queued", "a", 2**40), ("j_queued", "b", 7)):
        database.script(
            f"INSERT INTO job_objects (job_id, sha256, size) VALUES ('{job_id}', '{content}', {size});"
        )
    store = database.store()

    def look(view: View) -> tuple[object, ...]:
        return (
            view.stored_bytes_by_owner(),
            view.stored_bytes_of_team("t_vision"),
            view.stored_bytes_of_job("j_queued"),
            view.stored_bytes_of_jobs(),
        )

    owners = {"u_ann": 2**40, "u_bob": 2**40 + 7}
    assert await store.read(look) == (owners, 2**40, 2**40 + 7, 2**40 + 7)
    await store.write(lambda tx: tx.disown_objects([("j_done", "a"), ("j_queued", "b")]))
    assert await store.read(look) == ({"u_bob": 2**40}, 0, 2**40, 2**40)
    await store.close()
