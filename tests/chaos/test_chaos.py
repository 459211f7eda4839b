"""A short spell of `./dev chaos`: real processes killed and frozen; see docs/chaos.md for the long one."""

import pytest

from devtools.chaos.run import run_chaos

pytestmark = pytest.mark.e2e
ROUNDS = 12


@pytest.mark.parametrize("seed", [216])
def test_random_kills_and_freezes_lose_nothing_and_run_nothing_twice(seed: int) -> None:
    verdict = run_chaos(seed, ROUNDS)
    assert not verdict.problems, verdict.text()
    assert verdict.rounds == ROUNDS
