"""Opens the store that a database URL names."""

from pathlib import Path

from simpletuner_fleet.ports import Store
from simpletuner_fleet.store.failures import StoreRefused
from simpletuner_fleet.store.sqlite import SqliteStore

SQLITE_PREFIX = "sqlite:///"
POSTGRES_PREFIXES = ("postgresql://", "postgres://")
NEXT_STEP = (
    "Use 'sqlite:///fleet.db' (beside the current directory), 'sqlite:////var/lib/fleet.db' (absolute: four slashes)"
    " or 'postgresql://user@host/database'."
)


def open_store(url: str, term: int | None = None) -> Store:
    """Opens, checks and migrates the database.

    Raises StoreRefused, or StoreBusy when another orchestrator uses it. `term` is a term of the lease that PostgreSQL
    keeps; without one the database is opened for this orchestrator alone, or not at all.
    """
    file = sqlite_file_of(url)
    if file is not None:
        return SqliteStore(file)
    # Half of what psycopg costs at the start is its import, which a SQLite user need not pay.
    from simpletuner_fleet.store.postgres import PostgresStore

    return PostgresStore(url, term=term)


def sqlite_file_of(url: str) -> Path | None:
    """Returns the file that a URL names, or None where it names PostgreSQL. Raises StoreRefused for every other URL."""
    if url.startswith(POSTGRES_PREFIXES):
        return None
    if not url.startswith(SQLITE_PREFIX):
        # The URL itself is not repeated: it may hold a password.
        raise StoreRefused("The database URL names neither SQLite nor PostgreSQL.", next_step=NEXT_STEP)
    path = url.removeprefix(SQLITE_PREFIX)
    if not path or path.endswith("/") or path == ":memory:" or "?" in path:
        raise StoreRefused(f"'{url}' does not name a file.", next_step=NEXT_STEP)
    return Path(path)
