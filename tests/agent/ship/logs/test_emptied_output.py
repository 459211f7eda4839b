"""A script that writes `> /dev/stdout` empties its own log, and that keeps no job from ending."""

import os
from pathlib import Path

import pytest

from simpletuner_fleet.agent.ship.logs.log_stream import MIB, PUNCH_BYTES, LogLimits, LogStream, lost
from tests.agent.log_files import all_bytes, scanned, stream_of

LOST = b"bytes lost: gone from this output before they were sent]"


def printed(log: Path, text: bytes) -> None:
    with log.open("ab") as file:
        file.write(text)


def read_after_emptying(tmp_path: Path, before: bytes, after: bytes) -> tuple[LogStream, Path]:
    log = tmp_path / "output.log"
    printed(log, before)
    stream = scanned(stream_of(log))
    os.truncate(log, 0)
    printed(log, after)
    scanned(stream, 2.0)
    return scanned(stream, 3.0, ended=True), log


@pytest.mark.parametrize("after", [b"x\n", b"something that is longer than what there was before\n"])
def test_what_is_printed_after_the_emptying_follows_what_was_sent_before(
    tmp_path: Path, after: bytes
) -> None:
    stream, _ = read_after_emptying(tmp_path, b"before\n", after)
    assert all_bytes(stream, ended=True, start=len(b"before\n")) == after


def test_what_was_not_sent_before_the_emptying_is_said_to_be_lost(tmp_path: Path) -> None:
    before = b"never sent\n" * 300_000
    stream, _ = read_after_emptying(tmp_path, before, b"after\n" * 600_000)
    sent = all_bytes(stream, ended=True, start=11)
    assert len(sent) == len(before) - 11 + 3_600_000
    assert sent.endswith(b"after\n" * 600_000)
    assert LOST in sent[:100]
    assert sent.count(LOST) == -(-(len(before) - 11) // MIB), "once in each chunk"
    assert b"never sent" not in sent


@pytest.mark.parametrize("later_boots", [["before", "before"], ["after"], ["after", "after"]])
def test_what_a_power_cut_has_left_of_a_log_is_sent_once(tmp_path: Path, later_boots: list[str]) -> None:
    """The journal of an earlier process names what is lost. Without a new start of the machine the job has emptied it."""
    log = tmp_path / "output.log"
    printed(log, b"one line\n" * 100)
    scanned(stream_of(log, boot="before")).close()
    os.truncate(log, 450)
    sent = b""
    for boot in later_boots:
        stream = scanned(stream_of(log, boot=boot), ended=True)
        sent = all_bytes(stream, ended=True)
        stream.close()
    was_cut = "after" in later_boots
    assert sent == b"one line\n" * 50 + lost(450) if was_cut else lost(900) + b"one line\n" * 50


def test_a_log_that_was_emptied_before_a_power_cut_is_not_taken_for_one_that_was_cut(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    printed(log, b"before\n" * 100)
    scanned(stream_of(log, boot="before")).close()
    os.truncate(log, 0)
    printed(log, b"after\n")
    stream = scanned(stream_of(log, boot="after"), ended=True)
    assert all_bytes(stream, ended=True) == lost(700) + b"after\n"
    stream.close()


def test_an_emptied_log_of_which_nothing_was_noted_since_is_read_from_its_beginning(tmp_path: Path) -> None:
    """The process that saw it empty ends, and what is printed then is longer than what was there before."""
    log = tmp_path / "output.log"
    printed(log, b"before\n" * 10)
    stream = scanned(stream_of(log))
    os.truncate(log, 0)
    scanned(stream, 2.0).close()
    printed(log, b"after\n" * 30)
    for at in (3.0, 4.0):
        stream = scanned(stream_of(log), at, ended=True)
        assert all_bytes(stream, ended=True) == lost(70) + b"after\n" * 30
        stream.close()


@pytest.mark.parametrize("is_full_for_good", [False, True])
def test_a_full_disk_that_takes_no_head_has_nothing_sent_twice(
    tmp_path: Path, is_full_for_good: bool
) -> None:
    """A folder where the next head is written keeps it from being written, as a full disk does."""
    log = tmp_path / "output.log"
    in_the_way = tmp_path / ".output.log-heads.tmp"
    printed(log, b"before\n" * 10)
    stream = scanned(stream_of(log))
    in_the_way.mkdir()
    os.truncate(log, 0)
    printed(log, b"after\n" * 30)
    scanned(stream, 2.0)
    if not is_full_for_good:
        in_the_way.rmdir()
    scanned(stream, 3.0).close()
    stream = scanned(stream_of(log), 4.0, ended=True)
    assert all_bytes(stream, ended=True) == lost(70) + b"after\n" * 30
    stream.close()


def test_a_content_that_is_as_long_as_the_one_before_is_sent(tmp_path: Path) -> None:
    stream, _ = read_after_emptying(tmp_path, b"line 1\n", b"line 2\n")
    assert all_bytes(stream, ended=True, start=7) == b"line 2\n"


def test_a_flood_after_an_emptying_gives_its_disk_space_back(tmp_path: Path) -> None:
    log, limits = tmp_path / "output.log", LogLimits(100, MIB)
    stream = stream_of(log, limits)
    flood = b"flood\n" * (PUNCH_BYTES // 4)
    for at, text in enumerate([b"x\n", b"", *[flood] * 4, b"", *[flood] * 4], start=1):
        if not text:
            os.truncate(log, 0)
        printed(log, text)
        scanned(stream, float(at))
    size = log.stat().st_size
    assert log.stat().st_blocks * 512 < size / 2
    stream.close()
    stream = scanned(stream_of(log, limits), 20.0, ended=True)
    assert stream._journal.size == 2 + len(flood) * 4 + size, "no byte was read twice"
    stream.close()


@pytest.mark.parametrize("after", [b"x\n", b"something that is longer than what there was before\n" * 3])
@pytest.mark.parametrize("read_before", [False, True])
def test_an_output_that_was_emptied_before_the_next_process_took_it_up_is_not_sent_as_what_it_was(
    tmp_path: Path, after: bytes, read_before: bool
) -> None:
    """It may have been read since by a process that died before it had sent anything."""
    log = tmp_path / "output.log"
    printed(log, b"line 1\n" * 10)
    scanned(stream_of(log)).close()
    os.truncate(log, 0)
    printed(log, after)
    if read_before:
        scanned(stream_of(log), 2.0).close()
    stream = scanned(stream_of(log), 3.0, ended=True)
    assert all_bytes(stream, ended=True, start=14) == lost(56) + after
    stream.close()


@pytest.mark.parametrize("limit", [0, 10, 100])
@pytest.mark.parametrize("first", [b"a\n", b"something\n" * 20])
def test_an_output_that_only_grew_is_gone_on_with(tmp_path: Path, limit: int, first: bytes) -> None:
    log, limits = tmp_path / "output.log", LogLimits(limit, 2 * PUNCH_BYTES)
    for text in (first, b"flood\n" * (PUNCH_BYTES // 2), b"the end\n"):
        printed(log, text)
        scanned(stream_of(log, limits)).close()
    stream = scanned(stream_of(log, limits), ended=True)
    assert stream._journal.size == log.stat().st_size, "no byte was read twice"
    stream.close()


@pytest.mark.parametrize("spoiled", [b"", b"[{", b"\xff" * 50])
def test_a_head_that_a_disk_has_spoiled_is_no_sign_of_another_content(tmp_path: Path, spoiled: bytes) -> None:
    log = tmp_path / "output.log"
    printed(log, b"one line\n" * 10)
    scanned(stream_of(log)).close()
    log.with_suffix(".log-heads").write_bytes(spoiled)
    printed(log, b"another\n")
    stream = scanned(stream_of(log), ended=True)
    assert all_bytes(stream, ended=True) == log.read_bytes()
    stream.close()


def test_an_output_of_which_only_the_ends_are_kept_is_not_taken_for_an_emptied_one(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    stream = stream_of(log, LogLimits(0, 0))
    for _ in range(3):
        printed(log, b"flood\n" * (PUNCH_BYTES // 4))
        scanned(stream)
        printed(log, b"x\n")
        scanned(stream)
    assert scanned(stream, ended=True).read_chunk(0, ended=True) is not None
    assert stream._journal.size == log.stat().st_size, "no byte was read twice"


@pytest.mark.parametrize("length", [1, 2, 30, 75, 1000, 3 * MIB])
def test_what_stands_for_lost_bytes_is_as_long_as_they_were(length: int) -> None:
    filling = lost(length)
    assert len(filling) == length
    assert filling.endswith(b"\n")
    assert max(map(len, filling.split(b"\n"))) < 400
