"""Checks the orchestrator's own machine: its data folder, its database and its bucket."""

import asyncio
import os
import sqlite3
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from simpletuner_fleet.blobs.opening import StorageRefused, open_direct
from simpletuner_fleet.cli.doctor.checks_machine import disk
from simpletuner_fleet.cli.doctor.findings import CheckFinding, bad, doubt, good
from simpletuner_fleet.client.connection import LOCAL_WORKER_PROBLEM, local_server
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.engine.kept_settings import unreadable_of
from simpletuner_fleet.engine.memory.setting_documents import unreadable_documents
from simpletuner_fleet.languages import _, current, spoken_number
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.ports.direct import DirectBlobs
from simpletuner_fleet.store.integrity import stored_settings, unreadable_rows
from simpletuner_fleet.store.sqlite_file import WAL_RESET_WARNING, sqlite_warning

MOST_BYTES_CHECKED = 1024**3
ROWS_TOLD = 5


def data_folder(folder: Path) -> Iterator[CheckFinding]:
    if not folder.exists():
        yield doubt(
            _("data folder"),
            _("%(folder)s does not exist yet", folder=folder),
            _("simpletuner server creates it at its first start"),
        )
        yield disk(_("disk"), folder)
        return
    if not folder.is_dir():
        yield bad(_("data folder"), _("%(path)s is not a folder", path=folder), f"ls -ld {folder}")
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield bad(
            _("data folder"),
            _("this user cannot write to %(folder)s", folder=folder),
            f"ls -ld {folder}",
        )
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        yield doubt(
            _("data folder"),
            _("%(folder)s is accessible to other users (%(mode)s)", folder=folder, mode=f"{mode:04o}"),
            f"chmod 700 {folder}",
        )
    else:
        yield good(_("data folder"), f"{folder} ({mode:04o})")
    token = folder / "admin_token"
    if token.exists() and stat.S_IMODE(token.stat().st_mode) & 0o077:
        yield bad(
            _("admin token"),
            _("%(token)s can be read by other users", token=token),
            _("chmod 600 %(token)s, and change the token", token=token),
        )
    yield disk(_("disk"), folder)
    running = local_server(folder)
    if running.url:
        yield good(_("server"), _("last started at %(url)s", url=running.url))
    problem = folder / LOCAL_WORKER_PROBLEM
    if problem.is_file():
        yield bad(
            _("local worker"),
            _(
                "it stays off: %(reason)s",
                reason=detail_text(current(), problem.read_text(errors="replace").strip()),
            ),
            _("fix that and restart the server, or start it with --no-local"),
        )


def database(url: str | None, folder: Path) -> Iterator[CheckFinding]:
    if url and not url.startswith("sqlite:"):
        yield from _postgres(url)
        return
    if sqlite_warning():
        yield doubt(
            "SQLite",
            current().text(WAL_RESET_WARNING, version=sqlite3.sqlite_version),
            _("use a Python with SQLite 3.51.3 or later (now: %(executable)s)", executable=sys.executable),
        )
    else:
        yield good("SQLite", sqlite3.sqlite_version)
    files = [Path(url.removeprefix("sqlite:///"))] if url else sorted(folder.glob("*.db"))
    for file in files:
        yield _sqlite_file(file)


def _sqlite_file(file: Path) -> CheckFinding:
    if not file.exists():
        return doubt(
            _("database"),
            _("%(file)s does not exist yet", file=file),
            _("simpletuner server creates it at its first start"),
        )
    if file.stat().st_size > MOST_BYTES_CHECKED:
        return good(
            _("database"),
            _(
                "%(file)s, %(size_gb)s GB (too large for a quick check)",
                file=file,
                size_gb=spoken_number(file.stat().st_size / 1024**3, 1),
            ),
        )
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
        try:
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        return bad(
            _("database"), f"{file}: {error}", _("restore it from a backup, or check the file's permissions")
        )
    if verdict != "ok":
        return bad(_("database"), f"{file}: {verdict}", _("stop the server and restore a backup"))
    damaged = _damaged_rows(file)
    if damaged:
        return bad(
            _("database"),
            _("%(file)s has unreadable rows: %(rows)s", file=file, rows="; ".join(damaged)),
            _("the server sets them aside and keeps running; restore them from a backup"),
        )
    return good(_("database"), _("%(file)s is intact", file=file))


def _damaged_rows(file: Path) -> list[str]:
    try:
        settings = stored_settings(file)
        damaged = [*unreadable_rows(file), *unreadable_documents(settings), *unreadable_of(settings)]
        return [f"{one.table} {one.id} ({one.why})" for one in damaged[:ROWS_TOLD]]
    except sqlite3.Error:
        return []  # a database of another version: what it lacks, its migration brings


def direct_storage(
    url: str | None, who: str, workers_url: str | None, environment: Mapping[str, str]
) -> Iterator[CheckFinding]:
    """Checks whether large files go straight to a bucket, end to end with a kilobyte that is removed again."""
    if not url or not url.startswith("s3:"):
        return
    try:
        bucket = open_direct(url, who, workers_url, environment)
    except StorageRefused as error:
        yield bad(_("bucket"), error.detail or "", error.next_step or "")
        return
    if bucket is None:
        yield good(
            _("bucket"), _("large files go through the server (SIMPLETUNER_STORAGE_DIRECT: %(who)s)", who=who)
        )
        return
    try:
        asyncio.run(_prove(bucket))
    except (StoreUnavailable, FileNotFoundError) as error:
        reason = error.detail if isinstance(error, StoreUnavailable) else _("there is no such bucket")
        yield doubt(
            _("bucket"),
            _("large files go through the server: %(reason)s", reason=reason),
            _("check SIMPLETUNER_STORAGE_URL, the credentials, and that this machine's clock is right"),
        )
    else:
        yield good(_("bucket"), _("it takes what is sent by signed links: large files go straight there"))


async def _prove(bucket: DirectBlobs) -> None:
    try:
        await bucket.prove()
    finally:
        await bucket.close()


def _postgres(url: str) -> Iterator[CheckFinding]:
    import psycopg  # heavy, and most have SQLite

    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            row = connection.execute("SHOW server_version").fetchone()
        yield good(_("database"), _("PostgreSQL %(version)s is reachable", version=row[0] if row else ""))
    except psycopg.Error as error:
        yield bad(
            _("database"),
            _("PostgreSQL cannot be used: %(name)s", name=type(error).__name__),
            _("check SIMPLETUNER_DATABASE_URL, and that the database server is up"),
        )
