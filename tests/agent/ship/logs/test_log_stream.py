"""What is sent of an output, from any offset, by any process, with a cap."""

import socket
from pathlib import Path

import pytest

from simpletuner_fleet.agent.ship.logs.log_fold import ByteRange
from simpletuner_fleet.agent.ship.logs.log_stream import (
    CHUNK_BYTES,
    MAX_MARKS,
    MIB,
    LogLimits,
    LogStream,
    left_out,
)
from simpletuner_fleet.agent.ship.logs.output_log import Chunk
from tests.agent.log_files import all_bytes, read_all, scanned, stream_of


def test_the_output_comes_in_chunks_from_any_offset(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    content = bytes(byte for byte in range(256) if byte != 13) * 9000
    log.write_bytes(content)
    stream = scanned(stream_of(log), 5.0)
    chunks = read_all(stream, ended=False)
    assert b"".join(chunk.data for chunk in chunks) == content
    assert [len(chunk.data) for chunk in chunks] == [CHUNK_BYTES, CHUNK_BYTES, len(content) - 2 * CHUNK_BYTES]
    assert stream.read_chunk(1000, ended=False) == Chunk(
        1000, content[1000 : 1000 + CHUNK_BYTES], times=((1000, 5.0),)
    )


def test_no_file_and_no_news_are_no_chunk(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    stream = scanned(stream_of(log))
    assert stream.read_chunk(0, ended=False) is None
    log.write_bytes(b"abc")
    assert scanned(stream).read_chunk(3, ended=False) is None
    assert stream.read_chunk(3, ended=True) is None
    assert stream.read_chunk(99, ended=False) is None


def test_every_chunk_says_when_its_bytes_were_seen(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    stream = stream_of(log)
    for at in (1.0, 1.05, 2.0):
        with log.open("ab") as file:
            file.write(b"line\n")
        scanned(stream, at)
    chunk = stream.read_chunk(0, ended=False)
    assert chunk == Chunk(0, b"line\n" * 3, times=((0, 1.0), (10, 2.0)))
    assert stream.read_chunk(7, ended=False) == Chunk(7, b"ne\nline\n", times=((7, 1.05), (10, 2.0)))


def test_a_chunk_has_no_more_times_than_a_header_can_hold(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    stream = stream_of(log)
    for at in range(MAX_MARKS + 10):
        with log.open("ab") as file:
            file.write(b"x\n")
        scanned(stream, float(at))
    chunks = read_all(stream, ended=False)
    assert [len(chunk.times) for chunk in chunks] == [MAX_MARKS, 10]
    assert b"".join(chunk.data for chunk in chunks) == b"x\n" * (MAX_MARKS + 10)


def test_beyond_the_cap_nothing_is_sent_until_the_end_brings_the_tail_and_counts_the_gap(
    tmp_path: Path,
) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"h" * 100 + b"-" * 1_234_000 + b"t" * 10)
    stream = scanned(stream_of(log, LogLimits(head_bytes=100, tail_bytes=10)), ended=True)
    assert all_bytes(stream, ended=False) == b"h" * 100
    marker = left_out(1_234_000)
    assert "… 1,234,000 bytes left out …" in marker.decode().splitlines()
    assert all_bytes(stream, ended=True) == b"h" * 100 + marker + b"t" * 10
    assert [chunk.gap for chunk in read_all(stream, ended=True)] == [0, 1_234_000, 0]
    assert all_bytes(stream, ended=True, start=100 + len(marker) + 4) == b"t" * 6
    assert all_bytes(stream, ended=True, start=103) == marker[3:] + b"t" * 10


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 109, 110, 111, 500])
def test_what_is_sent_and_what_is_left_out_add_up(tmp_path: Path, size: int) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(bytes(number % 251 or 1 for number in range(size)).replace(b"\r", b"."))
    stream = scanned(stream_of(log, LogLimits(head_bytes=100, tail_bytes=10)), ended=True)
    chunks = read_all(stream, ended=True)
    gaps = [chunk for chunk in chunks if chunk.gap]
    sent = sum(len(chunk.data) for chunk in chunks if not chunk.gap)
    assert sent + sum(chunk.gap for chunk in gaps) == size
    assert len(gaps) == (1 if size > 110 else 0)


def test_a_process_that_was_killed_is_followed_by_one_that_sends_the_same_bytes(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"start\n" + b"".join(b"\r%d%%" % at for at in range(50)))
    first = scanned(stream_of(log), 1.0)
    sent = all_bytes(first, ended=False)
    with (tmp_path / "output.index").open("ab") as journal:
        journal.write(b"a torn record")
    with log.open("ab") as file:
        file.write(b"\r50%\nend\n")
    second = scanned(stream_of(log), 1.2, ended=True)
    assert second.resumed
    assert all_bytes(second, ended=True).startswith(sent)
    assert all_bytes(second, ended=True) == b"start\n\r50%\nend\n"


def test_a_stream_of_two_files_holds_both(tmp_path: Path) -> None:
    files = [tmp_path / "stdout.log", tmp_path / "stderr.log"]
    stream = LogStream(files, tmp_path / "index")
    files[0].write_bytes(b"out 1\n")
    scanned(stream, 1.0)
    files[1].write_bytes(b"err 1\n\r1%\r2%")
    scanned(stream, 2.0)
    with files[0].open("ab") as file:
        file.write(b"out 2\n")
    again = scanned(LogStream(files, tmp_path / "index"), 2.5, ended=True)
    assert all_bytes(again, ended=True) == b"out 1\nerr 1\n\rout 2\n2%"


def test_small_and_large_caps_are_split_into_beginning_and_end() -> None:
    assert LogLimits.of(1024**3) == LogLimits()
    assert LogLimits.of(1024**2) == LogLimits(768 * 1024, 256 * 1024)


def test_the_middle_of_a_flood_is_given_back_to_the_disk_and_what_is_sent_is_as_before(
    tmp_path: Path,
) -> None:
    """Beginning and end arrive as ever; between them nothing is kept, however much was printed."""
    log, limits = tmp_path / "output.log", LogLimits(head_bytes=2 * MIB, tail_bytes=MIB)
    line = b"the quick brown fox jumps over the lazy dog, and again, and again, and so on\n"
    stream = stream_of(log, limits)
    with log.open("ab", buffering=0) as file:
        for number in range(12):
            file.write(b"%d\n" % number + line * (16 * MIB // len(line)))
            scanned(stream, float(number))
        file.write(b"the end\n")
    scanned(stream, 99.0)
    printed, used = log.stat().st_size, log.stat().st_blocks * 512
    assert printed > 180 * MIB
    assert used < 64 * MIB, "most of it is a hole"
    sent = b"".join(chunk.data for chunk in read_all(stream, ended=True))
    assert sent.startswith(b"0\n" + line)
    assert sent.endswith(line + b"the end\n")
    assert b"\0" not in sent
    gap = printed - 3 * MIB
    assert left_out(gap) in sent, "every byte that is not there is counted"
    assert len(sent) == 3 * MIB + len(left_out(gap))


def test_progress_lines_go_on_when_the_clock_is_set_back_and_the_times_told_are_the_walls(
    tmp_path: Path,
) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"start\r")
    stream = stream_of(log)
    stream.scan(100.0, 9000.0, ended=False)
    for step in range(1, 5):
        with log.open("ab") as file:
            file.write(b"%d%%\r" % step)
        stream.scan(100.0 + 0.75 * step, 5000.0 + 0.75 * step, ended=False)
    assert all_bytes(stream, ended=False) == b"start\r1%\r3%\r"
    assert [chunk.times for chunk in read_all(stream, ended=False)] == [((0, 9000.0),)]
    assert [chunk.times for chunk in read_all(stream, ended=False, start=6)] == [((6, 5001.5), (9, 5003.0))]
    stream.close()


def test_a_process_after_the_clock_was_set_back_does_not_wait_for_the_old_time(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"start\r")
    first = stream_of(log)
    first.scan(100.0, 9000.0, ended=False)
    first.close()
    second = stream_of(log)
    for step, passed_s in enumerate((0.0, 0.6, 1.2)):
        with log.open("ab") as file:
            file.write(b"%d%%\r" % step)
        second.scan(10.0 + passed_s, 5000.0 + passed_s, ended=False)
    assert all_bytes(second, ended=False) == b"start\r1%\r"
    second.close()


def test_what_is_no_file_has_nothing_to_send_and_hinders_no_other(tmp_path: Path) -> None:
    loop, door, log = tmp_path / "loop.log", tmp_path / "door.log", tmp_path / "stdout.log"
    loop.symlink_to(loop)
    log.write_bytes(b"out\n")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(door))
        stream = scanned(LogStream([loop, door, log], tmp_path / "index"), ended=True)
    assert all_bytes(stream, ended=True) == b"out\n"
    stream.close()


def test_a_file_that_cannot_be_read_is_said_at_the_end_when_the_others_were_read(tmp_path: Path) -> None:
    closed, log = tmp_path / ("x" * 300), tmp_path / "stdout.log"
    log.write_bytes(b"out\n")
    stream = LogStream([closed, log], tmp_path / "index")
    scanned(stream)
    with pytest.raises(OSError, match="File name too long"):
        scanned(stream, ended=True)
    assert all_bytes(stream, ended=True) == b"out\n"
    stream.close()


def test_an_output_that_a_job_made_as_long_as_files_can_be_by_a_hole_is_read_in_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`os.ftruncate(1, 2**62)` costs a job nothing; the threads that read are those of all jobs."""
    log = tmp_path / "output.log"
    log.write_bytes(b"begun\n")
    with log.open("ab") as file:
        file.truncate(2**43)
        file.write(b"the end\n")
    limits = LogLimits(64 * 1024, 64 * 1024)
    stream = stream_of(log, limits)
    claimed = [0]
    add = stream._journal.add

    def counted(source: int, kept: list[ByteRange]) -> None:
        claimed[0] += len(kept)
        add(source, kept)

    monkeypatch.setattr(stream._journal, "add", counted)
    scanned(stream, ended=True)
    assert claimed[0] < 100
    for reader in (stream, scanned(stream_of(log, limits), ended=True)):
        chunks = read_all(reader, ended=True)
        assert b"".join(chunk.data for chunk in chunks).endswith(b"the end\n")
        assert sum(chunk.gap for chunk in chunks) == log.stat().st_size - 2 * 64 * 1024
