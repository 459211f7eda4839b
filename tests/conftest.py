"""Fixtures every test may use. PostgreSQL is real in every run and never skipped."""

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from devtools.postgres import running_postgres
from tests.ready_databases import ReadyPostgres, fresh_database, ready_postgres
from tests.s3_server import running_s3
from tests.whole_run.leftovers import end_with_this_run
from tests.whole_run.template_cache import GIVEN_AS, TEMPLATES, use_in_this_process

# Tests read what commands say in English, whatever the machine is set to; children inherit it.
os.environ.pop("SIMPLETUNER_LANG", None)
os.environ["LC_ALL"] = "C.UTF-8"
# How long a busy machine takes to draw an example says nothing of what is tested.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")
WAITING = ("tests/e2e/", "tests/chaos/", "tests/attacks/", "tests/web/")
end_with_this_run()


def pytest_configure(config: pytest.Config) -> None:
    TEMPLATES.open(config)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Of each process that pytest-xdist starts."""
    node.workerinput[GIVEN_AS] = str(TEMPLATES.path)


def pytest_collection_finish() -> None:
    use_in_this_process()


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The maintenance database of a real server; each pytest process has a server of its own."""
    with running_postgres() as url:
        yield url


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[str]:
    """The URL of a fresh, empty database, dropped afterwards with whoever is still connected."""
    with fresh_database(postgres_url) as url:
        yield url


@pytest.fixture(scope="session")
def one_ready_postgres(postgres_url: str) -> Iterator[ReadyPostgres]:
    with fresh_database(postgres_url) as url, ready_postgres(url) as database:
        yield database


@pytest.fixture
def ready_database(one_ready_postgres: ReadyPostgres) -> Iterator[str]:
    """The URL of a database with our schema and nothing in it. Who changes the schema asks for a `postgres_database`."""
    yield one_ready_postgres.url
    one_ready_postgres.make_empty()


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """One for all tests of a process, each under a prefix of its own: to start it costs as much as thirty of them."""
    with running_s3() as endpoint:
        yield endpoint


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempts what is collected from the search for garbage.

    Ten thousand tests and all modules stay until the end: to look through them took a third of a second each time, and
    a twentieth of what the tests took.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spreads the files that start real programs evenly among the others.

    They mostly wait. Side by side at the end of the list they would leave the machine idle; files stay whole, since their
    tests share what is costly to set up.
    """
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    waiting = [file for file in files if file.startswith(WAITING)]
    others = [file for file in files if not file.startswith(WAITING)]
    spread = [(at / max(len(waiting), 1), file) for at, file in enumerate(waiting)]
    spread += [(at / max(len(others), 1), file) for at, file in enumerate(others)]
    items[:] = [item for _, file in sorted(spread) for item in files[file]]
