"""Which bytes of an output are sent."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from simpletuner_fleet.agent.ship.logs.log_fold import LONGEST_UPDATE, ByteRange, Fold

Timed = list[tuple[bytes, float]]


def kept_of(fold: Fold, timed: Timed, *, finish: bool = True) -> list[ByteRange]:
    kept = [one for data, at in timed for one in fold.feed(data, at)]
    return kept + (fold.finish() if finish else [])


def sent_of(timed: Timed, *, finish: bool = True) -> bytes:
    whole = b"".join(data for data, _ in timed)
    return b"".join(whole[one.start : one.end] for one in kept_of(Fold(), timed, finish=finish))


def test_what_has_no_carriage_return_goes_as_it_comes() -> None:
    content = b"loss 1\n\x00\xff half a line"
    assert sent_of([(content, 1.0)], finish=False) == content


def test_of_many_updates_in_a_second_the_first_and_the_last_are_kept() -> None:
    bar = b"".join(b"\r%3d%%" % part for part in range(101)) + b"\nnext\n"
    assert sent_of([(bar, 1.0)]) == b"\r100%\nnext\n"


def test_one_update_a_second_is_kept() -> None:
    timed = [(b"\r%3d%%" % part, part / 10) for part in range(101)]
    updates = sent_of(timed).split(b"\r")
    assert len(updates) == 12
    assert updates[-1] == b"100%"


def test_the_last_update_before_a_newline_is_kept_also_with_windows_line_ends() -> None:
    assert sent_of([(b"\r10%\r20%\r\nend\r\n", 1.0)]) == b"\r20%\r\nend\r\n"
    assert sent_of([(b"\r10%\r20%\r\r\nend\r\n", 1.0)]) == b"\r20%\r\r\nend\r\n"


def test_lines_with_windows_ends_lose_nothing() -> None:
    content = b"one\r\ntwo\r\n\r\nthree\r\n"
    assert sent_of([(content, 1.0)]) == content


def test_an_update_is_shown_when_the_trainer_falls_silent() -> None:
    fold = Fold()
    fold.feed(b"\r10%\r20%", 1.0)
    assert fold.tick(1.5) == []
    assert fold.tick(2.0) == [ByteRange(5, 8, 1.0, False)]


def test_what_is_very_long_is_no_update() -> None:
    content = b"\r" + b"x" * LONGEST_UPDATE + b"\r" + b"y" * LONGEST_UPDATE + b"\rz\n"
    assert sent_of([(content, 1.0)]) == content


def test_a_trainer_of_carriage_returns_costs_bounded_memory() -> None:
    fold = Fold()
    for _ in range(100):
        fold.feed(b"\r" * 10_000, 1.0)
    assert len(fold._held) < 64


def test_the_end_brings_what_was_held_back() -> None:
    assert sent_of([(b"\r10%", 1.0)], finish=False) == b"\r"
    assert sent_of([(b"\r10%", 1.0)]) == b"\r10%"


pieces = st.lists(
    st.tuples(
        st.lists(
            st.sampled_from(
                [b"\r", b"\n", b"\r\n", b"a", b"bc", b"10%", b"x" * (LONGEST_UPDATE - 1), b"\r" * 63]
            ),
            max_size=8,
        ).map(b"".join),
        st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, 3.0]),
    ),
    max_size=12,
)


def with_times(steps: list[tuple[bytes, float]]) -> Timed:
    timed, now = [], 100.0
    for data, passed in steps:
        now += passed
        timed.append((data, now))
    return timed


@settings(max_examples=100)
@given(pieces, st.lists(st.integers(1, 7), min_size=1, max_size=6))
def test_however_the_output_is_cut_the_same_bytes_are_sent(
    steps: list[tuple[bytes, float]], cuts: list[int]
) -> None:
    timed = with_times(steps)
    cut: Timed = []
    turn = 0
    for data, at in timed:
        while data:
            size = cuts[turn % len(cuts)] if len(data) < 200 else len(data) // 2 + 1
            turn += 1
            cut.append((data[:size], at))
            data = data[size:]
    assert sent_of(cut) == sent_of(timed)


@settings(max_examples=100)
@given(pieces, st.lists(st.booleans(), min_size=1, max_size=5))
def test_looking_more_often_sends_the_same_bytes(steps: list[tuple[bytes, float]], looks: list[bool]) -> None:
    timed = [one for one in with_times(steps) if one[0]]
    fold, kept = Fold(), []
    for turn, (data, at) in enumerate(timed):
        if looks[turn % len(looks)]:
            kept += fold.tick(at)
        kept += fold.feed(data, at)
    kept += fold.finish()
    whole = b"".join(data for data, _ in timed)
    assert b"".join(whole[one.start : one.end] for one in kept) == sent_of(timed)


@settings(max_examples=100)
@given(pieces, st.integers(0, 12))
def test_a_process_after_this_one_goes_on_from_the_last_kept_bytes(
    steps: list[tuple[bytes, float]], killed_after: int
) -> None:
    timed = with_times(steps)
    whole = b"".join(data for data, _ in timed)
    kept = kept_of(Fold(), timed[:killed_after], finish=False)
    last = kept[-1] if kept else ByteRange(0, 0, 0.0, False)
    resumed = Fold(last.end, last.folding, last.at)
    later = [(whole[last.end :], timed[-1][1] + 10.0)] if timed else []
    kept += kept_of(resumed, later)
    assert all(one.end <= two.start for one, two in itertools.pairwise(kept))
    sent = b"".join(whole[one.start : one.end] for one in kept)
    assert sent.count(b"\n") == whole.count(b"\n")


@settings(max_examples=100)
@given(pieces)
def test_no_line_is_lost_and_each_ends_as_it_was_printed(steps: list[tuple[bytes, float]]) -> None:
    timed = with_times(steps)
    whole = b"".join(data for data, _ in timed)
    assume(b"\r" * 60 not in whole)  # such a run is cut, and then ends nothing
    assert _shown(sent_of(timed)) == _shown(whole)


def _shown(output: bytes) -> list[bytes]:
    return [line.rstrip(b"\r").rpartition(b"\r")[2] for line in output.split(b"\n")[:-1]]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_every_byte_is_sent_or_belongs_to_an_update_that_was_not(size: int) -> None:
    whole = b"epoch 1\r 1%\r 2%\r 3%\ndone\r\n" * 3
    timed = [(whole[at : at + size], 1.0) for at in range(0, len(whole), size)]
    assert sent_of(timed) == b"epoch 1\r 3%\ndone\r\n" * 3
