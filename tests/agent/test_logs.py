from pathlib import Path

import pytest

from simpletuner_fleet.agent.logs import CHUNK_BYTES, Chunk, LogLimits, last_lines, read_chunk


def read_all(path: Path, *, ended: bool, limits: LogLimits) -> list[Chunk]:
    chunks: list[Chunk] = []
    while chunk := read_chunk(path, chunks[-1].next_offset if chunks else 0, ended=ended, limits=limits):
        chunks.append(chunk)
    return chunks


def test_the_output_comes_in_chunks_from_any_offset(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    content = bytes(range(256)) * 1024
    log.write_bytes(content)
    chunks = read_all(log, ended=False, limits=LogLimits())
    assert b"".join(chunk.data for chunk in chunks) == content
    assert {len(chunk.data) for chunk in chunks} == {CHUNK_BYTES}
    assert read_chunk(log, 1000, ended=False) == Chunk(1000, content[1000 : 1000 + CHUNK_BYTES])


def test_no_file_and_no_news_are_no_chunk(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    assert read_chunk(log, 0, ended=False) is None
    log.write_bytes(b"abc")
    assert read_chunk(log, 3, ended=False) is None
    assert read_chunk(log, 3, ended=True) is None
    assert read_chunk(log, 99, ended=False) is None


def test_beyond_the_cap_nothing_is_sent_until_the_end_brings_the_tail_and_counts_the_gap(
    tmp_path: Path,
) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"h" * 100 + b"-" * 1000 + b"t" * 10)
    limits = LogLimits(head_bytes=100, tail_bytes=10)
    assert read_all(log, ended=False, limits=limits) == [Chunk(0, b"h" * 100)]
    assert read_all(log, ended=True, limits=limits) == [Chunk(0, b"h" * 100), Chunk(100, b"t" * 10, gap=1000)]
    assert read_chunk(log, 104, ended=True, limits=limits) == Chunk(104, b"t" * 6)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 109, 110, 111, 500])
def test_what_is_sent_and_what_is_left_out_add_up(tmp_path: Path, size: int) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(bytes(number % 251 for number in range(size)))
    chunks = read_all(log, ended=True, limits=LogLimits(head_bytes=100, tail_bytes=10))
    assert sum(len(chunk.data) + chunk.gap for chunk in chunks) == size


def test_the_last_lines_are_the_last_ones(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("".join(f"line {number}\n" for number in range(100)) + "\n\n")
    assert last_lines(log, count=2).splitlines() == ["line 98", "line 99"]


def test_a_line_without_end_costs_bounded_memory(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    with log.open("wb") as file:
        file.truncate(50_000_000)
        file.seek(0, 2)
        file.write(b"the end")
    assert last_lines(log) == "the end"


def test_arbitrary_bytes_become_harmless_text(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(
        b"\x1b[31mred\x1b[0m\tand \xff\xfe bytes\n"
        b"\x1b]0;title\x07shown\x00\x07\x08\n"
        b" 10%\r 50%\r100% done\r\n" + "evil \u202e txt\n".encode()
    )
    assert last_lines(log).splitlines() == ["red\tand \ufffd\ufffd bytes", "shown", "100% done", "evil  txt"]


def test_no_output_is_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "output.log") == ""
