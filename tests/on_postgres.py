"""A plug-in of pytest, `-p tests.on_postgres`: a server of a test that names no database gets one on a real PostgreSQL.

`./dev test -p tests.on_postgres tests/http tests/attacks tests/orchestrator` runs everything there that way; without it they
have a store in memory or on SQLite, and the story of each part is told on PostgreSQL beside them.
"""

import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from simpletuner_fleet.ports import Store
from simpletuner_fleet.store.postgres import PostgresStore

HOMES = ("tests.http.api_kit.MemoryStore", "devtools.fuzz.in_process_server.SqliteStore")


@pytest.fixture(autouse=True)
def stores_on_postgres(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names: list[str] = []

    def fresh(*_: object) -> Store:
        names.append(f"fleet_{secrets.token_hex(6)}")
        with psycopg.connect(postgres_url, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {names[-1]}".encode())
        return PostgresStore(urlunsplit(urlsplit(postgres_url)._replace(path=f"/{names[-1]}")))

    for home in HOMES:
        monkeypatch.setattr(home, fresh)
    yield
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        for name in names:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
