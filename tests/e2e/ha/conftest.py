"""Several orchestrators on a fresh database of a real PostgreSQL."""

import pytest

from tests.e2e.ha.several import Several
from tests.e2e.kit import World


@pytest.fixture
def several(bare_world: World, postgres_database: str) -> Several:
    return Several(bare_world, postgres_database)
