"""A real server process over a fleet that was built for it."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
import pytest
from msgspec import Struct
from playwright.async_api import Browser, Page

from simpletuner_fleet.http.access.sessions import COOKIE
from tests.e2e.kit import World
from tests.web.browser import Role, Watch, watched_context
from tests.web.fleet import SETTINGS, FleetState, build


class Served(Protocol):
    """Where pages come from, and who is logged in there."""

    @property
    def url(self) -> str: ...

    def cookies(self, role: Role) -> dict[str, str]: ...


class Console(Struct):
    world: World
    state: FleetState

    @property
    def url(self) -> str:
        return self.world.url

    def cookies(self, role: Role) -> dict[str, str]:
        return {} if role == "nobody" else {COOKIE: self.state.sessions[role]}


def sleeping_console(factory: pytest.TempPathFactory, *, hostile: bool = False) -> Console:
    """A fleet in a folder, to be copied: no server runs there. One pytest process builds it for all of the same run."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    world = World(folder / ("hostile" if hostile else "sleeping"))
    world.close()
    noted = world.folder / "state.json"
    with (folder / "building").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not noted.exists():
            shutil.rmtree(world.folder, ignore_errors=True)
            world.folder.mkdir()
            noted.write_bytes(msgspec.json.encode(build(world.home, hostile=hostile)))
    return Console(world, msgspec.json.decode(noted.read_bytes(), type=FleetState))


@contextmanager
def running_console(
    world: World,
    *,
    workers: int = 0,
    jobs: int = 0,
    log_lines: int = 0,
    hostile: bool = False,
    empty: bool = False,
    like: Console | None = None,
) -> Iterator[Console]:
    """Ready when it is given; afterwards every process has ended. `like` one that has not started: with its fleet."""
    state = FleetState()
    if like:
        shutil.copytree(like.world.home, world.home)
        state = like.state
        world.settings = SETTINGS
    elif not empty:
        state = build(world.home, workers=workers, jobs=jobs, log_lines=log_lines, hostile=hostile)
        world.settings = SETTINGS
    try:
        world.start_server()
        yield Console(world, state)
    finally:
        world.close()


class Pages:
    """Opens pages for people, each in a context of its own, and watches them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._opened: dict[Page, Watch] = {}

    async def __call__(self, console: Served, role: Role = "admin", **looks: Any) -> Page:
        cookies = console.cookies(role)
        context, watch = await watched_context(self._browser, console.url, cookies=cookies, **looks)
        page = await context.new_page()
        self._opened[page] = watch
        return page

    def watch(self, page: Page) -> Watch:
        return self._opened[page]

    async def close(self) -> None:
        for page in self._opened:
            await page.context.close()

    def check(self) -> None:
        for watch in self._opened.values():
            watch.check()
