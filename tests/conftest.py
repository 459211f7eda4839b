"""Fixtures every test may use. PostgreSQL is real in every run and never skipped."""

import os
import secrets
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from devtools.postgres import running_postgres

# Tests read what commands say in English, whatever the machine is set to; children inherit it.
os.environ.pop("SIMPLETUNER_LANG", None)
os.environ["LC_ALL"] = "C.UTF-8"


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The maintenance database of a real server; each pytest process has a server of its own."""
    with running_postgres() as url:
        yield url


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[str]:
    """The URL of a fresh, empty database, dropped afterwards with whoever is still connected."""
    name = f"fleet_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    yield urlunsplit(urlsplit(postgres_url)._replace(path=f"/{name}"))
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
