"""What the tests of the guard share."""

import secrets
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Named as no other attempt on this machine: a sweep ends whatever carries its name."""
    return tmp_path / f"a_{secrets.token_hex(6)}"
