"""Backs up and restores a SQLite database. SQLite itself makes the copy, while the server goes on writing."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from simpletuner_fleet.core.people.revocations import Withdrawn
from simpletuner_fleet.store.backup.archive import BackupManifest, BackupUnusable, member_of
from simpletuner_fleet.store.backup.restore_fixups import apply_fixups
from simpletuner_fleet.store.sqlite_file import claimed, make_private

COPY = "fleet.db"


class DatabaseFacts(NamedTuple):
    schema: int
    epoch: int
    audit_seq: int
    fleet_id: str | None


def copy_out(database: Path, folder: Path, version: str, now: float) -> BackupManifest:
    """Copies the database within one read transaction of it, which nobody has to wait for."""
    if not database.is_file():
        raise BackupUnusable(
            f"There is no database {database}.", next_step="Name it with --data-dir or --database-url."
        )
    place = folder / COPY
    with (
        closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(place)) as target,
    ):
        source.backup(target)
        target.execute("PRAGMA journal_mode = DELETE").fetchall()
        facts = check(target)
    return BackupManifest(
        version=version,
        database="sqlite",
        began_at=now,
        members=(member_of(place),),
        schema=facts.schema,
        epoch=facts.epoch,
        audit_seq=facts.audit_seq,
        fleet_id=facts.fleet_id,
    )


def check(connection: sqlite3.Connection) -> DatabaseFacts:
    """Returns what a manifest says of a database; raises where the database is damaged or contradicts itself."""
    try:
        complaints = [row[0] for row in connection.execute("PRAGMA integrity_check(3)")]
        if complaints != ["ok"]:
            raise BackupUnusable(f"The copy of the database is damaged: {'; '.join(complaints)}.")
        lost = connection.execute("PRAGMA foreign_key_check").fetchone()
        if lost is not None:
            raise BackupUnusable(f"A row of {lost[0]} belongs to nothing.")
        (schema,) = connection.execute("SELECT max(version) FROM schema_version").fetchone()
        (epoch,) = connection.execute("SELECT epoch FROM counters").fetchone()
        (highest,) = connection.execute("SELECT coalesce(max(epoch), 0) FROM attempts").fetchone()
        (audit_seq,) = connection.execute("SELECT coalesce(max(seq), 0) FROM audit").fetchone()
        fleet = connection.execute("SELECT value FROM settings WHERE key = 'fleet.id'").fetchone()
    except (sqlite3.Error, ValueError) as error:
        raise BackupUnusable(f"The copy is no database of ours: {error}.") from error
    if highest > epoch:
        raise BackupUnusable(f"The database has given the epoch {highest} and counts only to {epoch}.")
    return DatabaseFacts(schema, epoch, audit_seq, fleet[0] if fleet else None)


def verify(folder: Path, manifest: BackupManifest) -> None:
    with closing(sqlite3.connect(folder / COPY)) as connection:
        facts = check(connection)
    said = DatabaseFacts(manifest.schema, manifest.epoch, manifest.audit_seq, manifest.fleet_id)
    if facts != said:
        raise BackupUnusable(f"The manifest says {said}, and the database {facts}.")


def put_back(
    folder: Path,
    database: Path,
    withdrawn: Withdrawn,
    link_prefix: str,
    now: float,
    note: str,
    *,
    replace: bool,
) -> Path | None:
    """Restores the database: everything is done to the copy, which then takes its place.

    Returns where the database is that was there before.
    """
    database.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = claimed(database)
    try:
        if database.exists() and not replace:
            raise BackupUnusable(
                f"There is a database already: {database}.",
                next_step="Say --replace; the present one is kept beside it.",
            )
        copy = folder / COPY
        with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            apply_fixups(connection.execute, withdrawn, link_prefix, now, note)
            connection.execute("COMMIT")
        draft = database.with_name(database.name + ".restored")
        draft.write_bytes(copy.read_bytes())
        make_private(draft)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        kept = _put_aside(database, now) if database.exists() else None
        draft.replace(database)
        descriptor = os.open(database.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return kept
    finally:
        os.close(lock)


def _put_aside(database: Path, now: float) -> Path:
    """Moves the old database aside, after writing its write-ahead log into it, which belongs to it."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        connection.execute("PRAGMA journal_mode = DELETE").fetchall()
    kept = database.with_name(f"{database.name}.before-{int(now)}")
    database.replace(kept)
    return kept
