"""Brings a database to the schema of this code, one numbered step at a time. The way back is a backup."""

from collections.abc import Sequence
from importlib.resources import files

from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.core.jobs.job import JOB_TRANSITIONS, JobState
from simpletuner_fleet.store.failures import StoreRefused
from simpletuner_fleet.store.sql.database import SqlSession
from simpletuner_fleet.store.sql.tallies import recount_jobs

SCHEMA_RELEASE = "schema.release"
"""The setting that says which release brought the database to the schema that it has."""
SCHEMA_VERSION_TABLE = (
    "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL);"
)


class Migration(Struct, frozen=True):
    number: int
    name: str
    text: str


def migrations_for(dialect: str) -> list[Migration]:
    """Returns the migrations in order; `dialect` is `sqlite` or `postgresql`."""
    numbered = []
    for file in files("simpletuner_fleet.store.migrations").iterdir():
        stem, dot, kind = file.name.partition(".")
        if dot and kind == f"{dialect}.sql":
            number, _, name = stem.partition("_")
            numbered.append(Migration(int(number), name, file.read_text(encoding="utf-8")))
    return sorted(numbered, key=lambda migration: migration.number)


def migrate(session: SqlSession, migrations: Sequence[Migration]) -> None:
    """Applies the migrations that are missing. Each is one transaction: it is applied wholly or not at all."""
    reached = _reached(session)
    newest = migrations[-1].number
    if reached > newest:
        raise StoreRefused(
            f"This database was changed by a newer release, {_release_of(session)}: it has schema version {reached},"
            f" and this one ({__version__}) knows only up to {newest}. Nothing was changed.",
            next_step="Start that release, or a later one. To go back to this one, restore a backup that was made before"
            " the upgrade: 'simpletuner backup restore FILE --replace'.",
        )
    for migration in migrations:
        if migration.number > reached:
            _apply(session, migration)
    _bring_up_to_date(session)


def _release_of(session: SqlSession) -> str:
    """Returns the release that brought the database to its schema, as that release noted it."""
    session.begin()
    try:
        row = session.row("SELECT value FROM settings WHERE key = :key", {"key": SCHEMA_RELEASE})
    except Exception:  # the settings of a later release may lie elsewhere
        row = None
    finally:
        session.rollback()
    return str(row[0]) if row else "one that did not note its number"


def _reached(session: SqlSession) -> int:
    session.begin()
    try:
        session.script(SCHEMA_VERSION_TABLE)
        row = session.row("SELECT max(version) FROM schema_version", {})
        session.commit()
    except BaseException:
        session.rollback()
        raise
    return 0 if row is None or row[0] is None else int(row[0])


def _apply(session: SqlSession, migration: Migration) -> None:
    session.begin()
    try:
        session.script(migration.text)
        session.run(
            "INSERT INTO schema_version (version, name) VALUES (:version, :name)",
            {"version": migration.number, "name": migration.name},
        )
        _note_release(session)
        session.commit()
    except BaseException:
        session.rollback()
        raise


def _note_release(session: SqlSession) -> None:
    session.run("DELETE FROM settings WHERE key = :key", {"key": SCHEMA_RELEASE})
    session.run(
        "INSERT INTO settings (key, value) VALUES (:key, :value)",
        {"key": SCHEMA_RELEASE, "value": __version__},
    )


def _bring_up_to_date(session: SqlSession) -> None:
    """Writes what follows from the code and from the rows, and only what differs, so a full disk can be opened."""
    session.begin()
    try:
        _write_job_edges(session)
        recount_jobs(session)
        session.commit()
    except BaseException:
        session.rollback()
        raise


def reachable_pairs() -> set[tuple[JobState, JobState]]:
    """Returns every pair of states such that a job in the first can reach the second."""
    pairs = {(state, after) for (state, _), after in JOB_TRANSITIONS.items()}
    while more := {(a, d) for a, b in pairs for c, d in pairs if b is c} - pairs:
        pairs |= more
    return {(state, after) for state, after in pairs if state is not after}


def _write_job_edges(session: SqlSession) -> None:
    """Tells the database which changes of state to accept: all that one or more transitions lead to.

    A commit may hold several steps.
    """
    edges = {(state.value, after.value) for state, after in reachable_pairs()}
    if edges == set(session.rows("SELECT from_state, to_state FROM job_edges", {})):
        return
    session.run("DELETE FROM job_edges", {})
    session.many(
        "INSERT INTO job_edges (from_state, to_state) VALUES (:from_state, :to_state)",
        [{"from_state": state, "to_state": after} for state, after in sorted(edges)],
    )
