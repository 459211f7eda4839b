"""Searches a database file for rows that cannot be read, so that they are known before a server meets them."""

import sqlite3
from pathlib import Path

from simpletuner_fleet.ports import SetAsideRow
from simpletuner_fleet.store.rows.documents import ENDPOINTS
from simpletuner_fleet.store.rows.jobs import ATTEMPTS, JOBS
from simpletuner_fleet.store.rows.workers import WORKERS

TABLES = (("workers", WORKERS), ("jobs", JOBS), ("attempts", ATTEMPTS))
OF_ENDPOINTS = "SELECT id, document FROM endpoints"
THERE_ARE_ENDPOINTS = "SELECT 1 FROM sqlite_master WHERE name = 'endpoints'"
"""Not in a database of an older version."""


def unreadable_rows(file: Path) -> list[SetAsideRow]:
    """Reads every row of these tables; raises sqlite3.Error where the file itself cannot be read."""
    connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)
    rows: list[SetAsideRow] = []
    try:
        for table, codec in TABLES:
            unreadable = codec.unreadable(
                connection.execute(f"SELECT {', '.join(codec.columns)} FROM {table}")
            )
            rows += [SetAsideRow(table=table, id=one, why=why) for one, why in unreadable.items()]
        if connection.execute(THERE_ARE_ENDPOINTS).fetchone():
            unreadable = ENDPOINTS.unreadable(connection.execute(OF_ENDPOINTS))
            rows += [SetAsideRow(table="endpoints", id=one, why=why) for one, why in unreadable.items()]
    finally:
        connection.close()
    return rows
