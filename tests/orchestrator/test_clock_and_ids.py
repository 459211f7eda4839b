"""Time that never jumps, names nobody guesses."""

import hmac
import itertools
import re

import pytest

from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.ids import RandomIds


def test_a_jump_of_the_wall_clock_is_not_seen() -> None:
    wall, monotonic = [1_000.0], [5.0]
    clock = SteadyClock(lambda: wall[0], lambda: monotonic[0])
    assert clock.now() == 1_000.0
    wall[0] -= 86_400
    monotonic[0] += 2.5
    assert clock.now() == 1_002.5


def test_ids_are_short_url_safe_and_do_not_repeat() -> None:
    ids = RandomIds(b"s" * 32)
    made = {ids.new("j") for _ in range(2_000)}
    assert len(made) == 2_000
    assert all(re.fullmatch(r"j_[0-9A-Za-z]{12}", one) for one in made)


def test_ids_that_are_made_later_sort_later_and_those_of_one_moment_lie_together() -> None:
    now = [1_000_000.0]
    ids = RandomIds(b"s" * 32, lambda: now[0])
    moments = []
    for _ in range(50):
        moments.append([ids.new("j") for _ in range(20)])
        now[0] += 0.1
    assert all(max(one) < min(next_one) for one, next_one in itertools.pairwise(moments))
    assert len({one for moment in moments for one in moment}) == 1_000


def test_tokens_have_the_form_of_the_contract_and_do_not_repeat() -> None:
    ids = RandomIds(b"s" * 32)
    first, second = ids.token(tokens.WORKER), ids.token(tokens.WORKER)
    assert first != second
    assert tokens.complaint(first, tokens.WORKER) is None


def test_a_derived_token_is_the_same_each_time_and_another_for_every_secret_prefix_and_thing() -> None:
    ids = RandomIds(b"s" * 32)
    token = ids.derived_token(tokens.UPLOAD, "upload:a_1:1")
    assert token == RandomIds(b"s" * 32).derived_token(tokens.UPLOAD, "upload:a_1:1")
    assert tokens.complaint(token, tokens.UPLOAD) is None
    others = {
        RandomIds(b"t" * 32).derived_token(tokens.UPLOAD, "upload:a_1:1"),
        ids.derived_token(tokens.UPLOAD, "upload:a_1:2"),
        ids.derived_token(tokens.API, "upload:a_1:1"),
    }
    assert token not in others
    assert len(others) == 3


def test_a_derived_token_is_the_one_that_earlier_releases_sent() -> None:
    """A worker still has it, and all that is stored of it is its hash."""
    token = RandomIds(b"s" * 32).derived_token(tokens.UPLOAD, "upload:a_1:1")
    assert token == "ut_sBl9ug4bjvC9mjaKWIxXnMU7ZcjwzG9Sx8ietIvSshC3vY9wt"


@pytest.mark.parametrize("secret_bytes", [32, 63, 64, 65, 200])
def test_a_derived_token_is_made_of_the_usual_proof_of_its_name(secret_bytes: int) -> None:
    secret = bytes(range(secret_bytes))
    proof = hmac.digest(secret, b"ut:upload:a_1:1", "sha256")
    assert RandomIds(secret).derived_token("ut", "upload:a_1:1") == tokens.make("ut", proof)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        RandomIds(b"short")
