"""How deeply a body is nested is counted as somebody would who reads it bracket by bracket, and sooner."""

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simpletuner_fleet.core.errors import Malformed
from simpletuner_fleet.http.edge.bodies import MAX_DEPTH, refuse_deep

STRINGS_AND_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)
PIECES = (b"[", b"]", b"{", b"}", b'"', b"\\", b'\\"', b"\\\\", b"a", b",", b"[" * 40, b"{" * 40, b"]" * 30)
MIB = 1024 * 1024


def deepest(body: bytes) -> int:
    depth = most = 0
    for token in STRINGS_AND_BRACKETS.findall(body):
        depth += (token in (b"[", b"{")) - (token in (b"]", b"}"))
        most = max(most, depth)
    return most


def is_refused(body: bytes) -> bool:
    try:
        refuse_deep(body)
    except Malformed:
        return True
    return False


@settings(max_examples=500)
@given(st.lists(st.sampled_from(PIECES), max_size=60).map(b"".join))
@example(b'{"a\\\\":' * MAX_DEPTH + b"[")
@example(b'["\\"[[' * MAX_DEPTH + b"[")
def test_depth_is_counted_outside_of_strings_alone(body: bytes) -> None:
    if _has_no_stray_backslash(body):
        assert is_refused(body) == (deepest(body) > MAX_DEPTH)


def _has_no_stray_backslash(body: bytes) -> bool:
    """Outside of a string one is no JSON, whatever it is taken for."""
    return b"\\" not in STRINGS_AND_BRACKETS.sub(lambda token: b"", body)


@pytest.mark.parametrize(("open_", "close"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_the_last_level_that_is_allowed_is_taken(open_: bytes, close: bytes) -> None:
    assert not is_refused(open_ * MAX_DEPTH + close * MAX_DEPTH)
    assert is_refused(open_ * (MAX_DEPTH + 1) + close * (MAX_DEPTH + 1))


@pytest.mark.parametrize(
    "body",
    [
        b"[]," * MIB,
        b"]" * 4 * MIB,
        b"[" * 4 * MIB,
        b'"a",' * MIB + b"[]" * MAX_DEPTH,
        b'"\\"' * MIB + b"[]" * MAX_DEPTH,
        (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) * 30_000,
    ],
    ids=["pairs", "closing", "opening", "strings", "escapes", "towers"],
)
def test_millions_of_brackets_are_counted_at_once(body: bytes) -> None:
    began = time.process_time()
    is_refused(body)
    assert time.process_time() - began < 2
