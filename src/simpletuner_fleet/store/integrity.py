"""Searches a database file for rows that cannot be read, so that they are known before a server meets them."""

import sqlite3
from pathlib import Path

from simpletuner_fleet.ports import SetAsideRow
from simpletuner_fleet.store.rows.documents import APPROVALS, ENDPOINTS, MACHINES, POOLS, PUBLICATIONS
from simpletuner_fleet.store.rows.jobs import ATTEMPTS, DELETED_JOBS, JOBS
from simpletuner_fleet.store.rows.workers import WORKERS

TABLES = (("workers", WORKERS), ("jobs", JOBS), ("attempts", ATTEMPTS), ("deleted_jobs", DELETED_JOBS))
DOCUMENTS = (
    *(("endpoints", "id", ENDPOINTS), ("pools", "name", POOLS), ("machines", "id", MACHINES)),
    *(("approvals", "job_id", APPROVALS), ("publications", "job_id", PUBLICATIONS)),
)
TABLE_IS_THERE = "SELECT 1 FROM sqlite_master WHERE name = ?"
"""Not every one is in a database of an older version."""


def stored_settings(file: Path) -> dict[str, str]:
    """Returns all settings; raises sqlite3.Error where the file itself cannot be read."""
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    try:
        return dict(connection.execute("SELECT key, value FROM settings"))
    finally:
        connection.close()


def unreadable_rows(file: Path) -> list[SetAsideRow]:
    """Reads every row of these tables; raises sqlite3.Error where the file itself cannot be read."""
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    rows: list[SetAsideRow] = []
    try:
        for table, codec in TABLES:
            if connection.execute(TABLE_IS_THERE, (table,)).fetchone():
                unreadable = codec.unreadable(
                    connection.execute(f"SELECT {', '.join(codec.columns)} FROM {table}")
                )
                rows += [SetAsideRow(table=table, id=one, why=why) for one, why in unreadable.items()]
        for table, key, documents in DOCUMENTS:
            if connection.execute(TABLE_IS_THERE, (table,)).fetchone():
                unreadable = documents.unreadable(connection.execute(f"SELECT {key}, document FROM {table}"))
                rows += [SetAsideRow(table=table, id=one, why=why) for one, why in unreadable.items()]
    finally:
        connection.close()
    return rows
