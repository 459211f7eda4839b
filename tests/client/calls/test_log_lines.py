"""Lines of a log, however its bytes arrive."""

import random
import time

import pytest

from simpletuner_fleet.client.calls import logs
from simpletuner_fleet.client.calls.logs import LineCutter

LOG = "first\n\nsecond ½ 漢字\r\nthe third, without an end".encode()
LONG_LINE = b"\r step 1" * 2**20


def cut(data: bytes, most: int) -> list[bytes]:
    chance, pieces = random.Random(most), list[bytes]()
    while data:
        size = chance.randint(1, most)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def test_lines_are_the_same_wherever_they_were_cut() -> None:
    for most in (1, 2, 5, 100):
        cutter = LineCutter()
        lines = [line for piece in cut(LOG, most) for line in cutter.feed(piece)]
        assert lines + cutter.feed(b"", last=True) == LOG.decode().split("\n")


def test_a_log_that_is_one_line_costs_no_more_than_one_of_many() -> None:
    cutter, began = LineCutter(), time.process_time()
    for at in range(0, len(LONG_LINE), 16_384):
        assert cutter.feed(LONG_LINE[at : at + 16_384]) == []
    assert cutter.feed(b"\nnext\n") == [LONG_LINE.decode(), "next"]
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext"])
@pytest.mark.parametrize("length", [4, 5, 8, 9])
def test_a_line_that_is_too_long_comes_in_the_same_pieces_wherever_it_was_cut(
    monkeypatch: pytest.MonkeyPatch, most: int, end: bytes, length: int
) -> None:
    monkeypatch.setattr(logs, "LONGEST_LINE", 4)
    long_line, cutter = "abcdefghij"[:length], LineCutter()
    lines = [line for piece in cut(long_line.encode() + end, most) for line in cutter.feed(piece)]
    parts = [long_line[begin : begin + 4] for begin in range(0, length, 4)]
    assert lines + cutter.feed(b"", last=True) == parts + (["next"] if end == b"\nnext" else [])
