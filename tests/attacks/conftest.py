"""A world of real processes for those who attack a process."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kit import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """With a server that is ready."""
    here = World(tmp_path)
    try:
        here.start_server()
        yield here
    finally:
        here.close()
