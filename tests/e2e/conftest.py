"""Every test here is marked e2e, gets a world of its own, and shows what each program said if it fails."""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kit import World

WORLD = pytest.StashKey[World]()
HERE = "tests/e2e/"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(HERE):
            item.add_marker(pytest.mark.e2e)


@pytest.fixture
def bare_world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """Nothing runs yet."""
    world = World(tmp_path)
    request.node.stash[WORLD] = world
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def world(bare_world: World) -> World:
    """With a server that is ready."""
    bare_world.start_server()
    return bare_world


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, Any]:
    report = yield
    world = item.stash.get(WORLD, None)
    if report.when == "call" and report.failed and world is not None:
        report.sections += list(world.outputs())
    return report
