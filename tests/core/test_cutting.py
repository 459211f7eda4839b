"""A piece of a text begins with a whole line or says by an ellipsis that it does not, and is never too long."""

from hypothesis import given
from hypothesis import strategies as some

from simpletuner_fleet.core.cutting import ELLIPSIS, excerpt, first_few, tail_of

TEXTS = some.text(alphabet="ab\n ", max_size=60)


@given(TEXTS, some.integers(min_value=2, max_value=40))
def test_a_tail_is_the_end_from_the_beginning_of_a_line(text: str, limit: int) -> None:
    tail = tail_of(text, limit)
    assert len(tail) <= limit
    assert text.rstrip().endswith(tail.removeprefix(ELLIPSIS).rstrip())
    if not tail.startswith(ELLIPSIS):
        assert len(tail) == len(text) or text[-len(tail) - 1] == "\n"


@given(
    some.text(alphabet="abc", max_size=60),
    some.integers(min_value=5, max_value=40),
    some.integers(min_value=0, max_value=59),
)
def test_an_excerpt_shows_the_place_asked_for_and_says_where_it_was_cut(
    line: str, limit: int, at: int
) -> None:
    seen = excerpt(line, limit, around=min(at, max(0, len(line) - 1)))
    assert len(seen) == min(len(line), limit)
    kept = seen.strip(ELLIPSIS)
    assert kept in line
    assert line.startswith(kept) or seen.startswith(ELLIPSIS)
    assert line.endswith(kept) or seen.endswith(ELLIPSIS)


def test_an_excerpt_holds_what_is_asked_for_wherever_it_is() -> None:
    for at in range(100):
        line = "." * at + "X" + "." * (99 - at)
        assert "X" in excerpt(line, 10, around=at)


def test_of_many_texts_the_first_few_are_said_and_the_others_counted() -> None:
    assert first_few([], 2) == ""
    assert first_few(["a", "b"], 2) == "a; b"
    assert first_few(["a", "b", "c", "d"], 2) == "a; b; 2 more"
