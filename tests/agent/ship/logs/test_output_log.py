import os
from pathlib import Path

from simpletuner_fleet.agent.ship.logs.output_log import last_lines


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
    assert last_lines(log) == "…the end"


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


def test_the_first_of_them_is_a_whole_line_or_says_that_it_is_not(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("one CUDA error\ntwo\nthree\n")
    assert last_lines(log, max_bytes=18) == "two\nthree"
    assert last_lines(log, max_bytes=10) == "two\nthree", "the cut is just where the line begins"
    log.write_text("0123456789")
    assert last_lines(log, max_bytes=4) == "…6789"
    assert last_lines(log, max_bytes=10) == "0123456789"


def test_of_what_cannot_be_read_there_are_no_last_lines_and_nobody_waits_for_it(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "nothing") == ""
    assert last_lines(Path("/proc/self/mem")) == "", "it can be opened and no more, as on a disk that fails"
    os.mkfifo(tmp_path / "pipe")
    assert last_lines(tmp_path / "pipe") == ""
