"""One browser and one server with a fleet for all tests of a run; a context of its own for each test.

A test that changes the fleet asks for `own_fleet` instead of `fleet`; one that moves workers itself, for a `stage`.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Literal

import pytest
import pytest_asyncio
from playwright.async_api import Browser

from tests.e2e.kit import World
from tests.web.browser import chromium
from tests.web.console import Console, Pages, running_console, sleeping_console
from tests.web.stage import Stage, set_stage

HERE = "tests/web/"
ONE_LOOP: Literal["session"] = "session"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The browser lives in one event loop, and so does whatever talks to it."""
    for item in items:
        if item.nodeid.startswith(HERE) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope=ONE_LOOP), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope=ONE_LOOP)
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as one:
        yield one


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """Workers and jobs in all states, with names and logs as hostile as they may be. To look at only."""
    like = sleeping_console(tmp_path_factory, hostile=True)
    with running_console(World(tmp_path_factory.mktemp("fleet")), like=like) as console:
        yield console


@pytest.fixture(scope="session")
def sleeping(tmp_path_factory: pytest.TempPathFactory) -> Console:
    """The fleet of those who ask for one of their own, before it is copied."""
    return sleeping_console(tmp_path_factory)


@pytest.fixture
def own_fleet(tmp_path: Path, sleeping: Console) -> Iterator[Console]:
    """The same for one test alone."""
    with running_console(World(tmp_path), like=sleeping) as console:
        yield console


@pytest.fixture
def own_empty(tmp_path: Path) -> Iterator[Console]:
    """A server that nobody has used yet."""
    with running_console(World(tmp_path), empty=True) as console:
        yield console


@pytest_asyncio.fixture(loop_scope=ONE_LOOP)
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with set_stage(tmp_path) as one:
        yield one


@pytest_asyncio.fixture(loop_scope=ONE_LOOP)
async def page_as(browser: Browser) -> AsyncIterator[Pages]:
    """`await page_as(console, "admin", language="hi", theme="dark", size=PHONE)`: a page of that person, watched."""
    pages = Pages(browser)
    try:
        yield pages
    finally:
        await pages.close()
    pages.check()
