"""The orchestrator's own machine: data folder, database, certificate."""

import os
import sqlite3
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from simpletuner_fleet.cli.checks_machine import disk
from simpletuner_fleet.cli.connection import local_server
from simpletuner_fleet.cli.findings import Finding, bad, doubt, good
from simpletuner_fleet.store.sqlite_file import sqlite_warning

MOST_BYTES_CHECKED = 1024**3


def data_folder(folder: Path) -> Iterator[Finding]:
    if not folder.exists():
        yield doubt(
            "data folder", f"{folder} is not there yet", "it is made by the first: simpletuner server"
        )
        yield disk("disk", folder)
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield bad("data folder", f"{folder} cannot be written by this user", f"ls -ld {folder}")
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        yield doubt("data folder", f"{folder} is open to other users ({mode:04o})", f"chmod 700 {folder}")
    else:
        yield good("data folder", f"{folder} ({mode:04o})")
    token = folder / "admin_token"
    if token.exists() and stat.S_IMODE(token.stat().st_mode) & 0o077:
        yield bad("admin token", f"{token} can be read by others", f"chmod 600 {token}, and change the token")
    yield disk("disk", folder)
    running = local_server(folder)
    if running.url:
        yield good("server", f"last started at {running.url}")


def database(url: str | None, folder: Path) -> Iterator[Finding]:
    if url and not url.startswith("sqlite:"):
        yield from _postgres(url)
        return
    warning = sqlite_warning()
    if warning:
        yield doubt("SQLite", warning, f"use a Python with SQLite 3.51.3 or later (now: {sys.executable})")
    else:
        yield good("SQLite", sqlite3.sqlite_version)
    files = [Path(url.removeprefix("sqlite:///"))] if url else sorted(folder.glob("*.db"))
    for file in files:
        yield _sqlite_file(file)


def _sqlite_file(file: Path) -> Finding:
    if not file.exists():
        return doubt("database", f"{file} is not there yet", "it is made by the first: simpletuner server")
    if file.stat().st_size > MOST_BYTES_CHECKED:
        return good(
            "database", f"{file}, {file.stat().st_size / 1024**3:.1f} GB (too large for a quick check)"
        )
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
        try:
            verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        finally:
            connection.close()
    except sqlite3.Error as error:
        return bad(
            "database", f"{file}: {error}", "restore it from a backup, or check the rights of the file"
        )
    if verdict != "ok":
        return bad("database", f"{file}: {verdict}", "stop the server and restore a backup")
    return good("database", f"{file} is whole")


def _postgres(url: str) -> Iterator[Finding]:
    import psycopg  # heavy, and most have SQLite

    try:
        with psycopg.connect(url, connect_timeout=5) as connection:
            row = connection.execute("SHOW server_version").fetchone()
        yield good("database", f"PostgreSQL {row[0] if row else ''} answers")
    except psycopg.Error as error:
        yield bad(
            "database",
            f"PostgreSQL cannot be used: {type(error).__name__}",
            "check SIMPLETUNER_DATABASE_URL, and that the database server is up",
        )
