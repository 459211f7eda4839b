"""Lines of a log, however its bytes arrive."""

import random
import time

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
