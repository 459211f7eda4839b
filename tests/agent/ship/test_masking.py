"""No secret in what a worker sends, however it lies across the borders of what is read."""

import io
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simpletuner_fleet.agent.guard.shim_report import LAST_LINES_BYTES
from simpletuner_fleet.agent.guard.shim_report import last_lines as shims_last_lines
from simpletuner_fleet.agent.ship.logs.log_stream import CHUNK_BYTES, LogLimits, left_out
from simpletuner_fleet.agent.ship.logs.output_log import last_lines
from simpletuner_fleet.agent.ship.masking import Mask
from tests.agent.log_files import all_bytes, read_all, scanned, stream_of

CANARY = "canary-0123456789"
MASK = Mask.of([CANARY])


def test_a_secret_becomes_as_many_asterisks() -> None:
    assert MASK.hide(b"a canary-0123456789 b") == b"a " + b"*" * 17 + b" b"
    assert MASK.text(f"ü {CANARY}") == "ü " + "*" * 17
    assert Mask.of(["ababab"]).hide(b"abababab!") == b"********!"


def test_short_values_are_left_alone() -> None:
    assert Mask.of(["12345", ""]).values == ()
    assert Mask.of(["123456"]).values == (b"123456",)


def test_a_secret_across_two_chunks_is_hidden_in_both(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"x" * (CHUNK_BYTES - 5) + CANARY.encode() + b"\n")
    first, second = read_all(scanned(stream_of(log, mask=MASK)), ended=False)
    assert first.data.endswith(b"x*****")
    assert len(first.data) == CHUNK_BYTES
    assert second.data == b"*" * 12 + b"\n"


def test_the_beginning_of_a_secret_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"token: canary-0123")
    stream = stream_of(log, mask=MASK)
    assert all_bytes(scanned(stream), ended=False) == b"token: "
    with log.open("ab") as file:
        file.write(b"456789")
    assert all_bytes(scanned(stream), ended=False, start=7) == b"*" * 17


def test_what_looked_like_a_beginning_is_sent_once_it_is_none(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"a can")
    stream = stream_of(log, mask=MASK)
    assert all_bytes(scanned(stream), ended=False) == b"a "
    assert all_bytes(scanned(stream, ended=True), ended=True) == b"a can"


def test_a_secret_across_the_gap_of_a_capped_log_is_hidden(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"h" * 12 + CANARY.encode() + b"x" * 100 + CANARY.encode() + b"t" * 10)
    stream = stream_of(log, LogLimits(head_bytes=20, tail_bytes=20), MASK)
    sent = all_bytes(scanned(stream, ended=True), ended=True)
    assert sent == b"h" * 12 + b"*" * 8 + left_out(116) + b"*" * 10 + b"t" * 10


def test_a_secret_in_a_progress_bar_is_hidden(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"\r1%\r2%\r" + CANARY.encode() + b"\n")
    assert all_bytes(scanned(stream_of(log, mask=MASK)), ended=False) == b"\r" + b"*" * 17 + b"\n"


def test_last_lines_hide_a_secret_that_their_beginning_cuts(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(CANARY.encode() + b"." * 10)
    assert last_lines(log, max_bytes=15, mask=MASK) == "…*****.........."
    log.write_bytes(CANARY.encode() + b"." * (LAST_LINES_BYTES - 5))
    assert shims_last_lines(str(log), [CANARY]) == "…*****" + "." * (LAST_LINES_BYTES - 5)
    assert shims_last_lines(str(log), []).startswith("…56789.")


def test_what_a_shim_tells_of_the_end_begins_with_a_whole_line(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    line = "x" * 99 + "\n"
    log.write_text("of this one the last bytes hold a part " * 5 + "\n" + line * (LAST_LINES_BYTES // 100))
    assert set(shims_last_lines(str(log), []).splitlines()) == {line.strip()}


@pytest.mark.parametrize(
    "printed",
    [
        b"token hf_abc\x1b[36m123\x1b[0mdef\n",
        b"token hf_\x1b]8;;http://x\x07abc123def\n",
        "token hf_abc123def\n".encode("utf-16-le"),
        b"token hf_abc\x00123def\n",
    ],
)
def test_a_secret_that_comes_together_once_colours_and_controls_are_left_out_is_hidden(
    tmp_path: Path, printed: bytes
) -> None:
    """Loggers colour numbers by themselves; nobody meant to print it in another form."""
    log = tmp_path / "output.log"
    log.write_bytes(printed)
    mask = Mask.of(["hf_abc123def"])
    assert last_lines(log, mask=mask).endswith("token ************")
    assert "hf_abc123def" not in shims_last_lines(str(log), ["hf_abc123def"])


def test_a_secret_that_begins_like_another_is_hidden_wholly(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"canary-v2!")
    for values in (["canary", "canary-v2"], ["canary-v2", "canary"]):
        assert last_lines(log, mask=Mask.of(values)) == "*********!"
        assert shims_last_lines(str(log), values) == "*********!"


def test_a_secret_that_repeats_itself_takes_no_longer_than_another(tmp_path: Path) -> None:
    log, secret = tmp_path / "output.log", "-" * 4_000
    log.write_bytes(b"-" * 2**17 + b"!")
    began = time.process_time()
    assert Mask.of([secret]).hide(log.read_bytes()) == b"*" * 2**17 + b"!"
    assert shims_last_lines(str(log), [secret]) == "…" + "*" * (LAST_LINES_BYTES - 1) + "!"
    assert time.process_time() - began < 2.0


def test_many_long_secrets_take_no_time_to_be_looked_for_at_the_end() -> None:
    mask = Mask.of(["-" * size for size in range(16_000, 16_032)])
    output = io.BytesIO(b"-" * 2**17 + b"!" * 2**17)
    began = time.process_time()
    for _ in range(5):
        assert mask.read(output, 2**17 - 5, 10, ended=False) == b"*****!!!!!"
    assert time.process_time() - began < 2.0


@given(
    st.lists(st.text("ab", min_size=6, max_size=50), min_size=1, max_size=3),
    st.lists(st.one_of(st.integers(0, 2), st.text("ab", max_size=50)), max_size=6),
)
def test_each_byte_of_each_occurrence_is_hidden_and_no_other(
    secrets: list[str], words: list[int | str]
) -> None:
    data = "".join(word if isinstance(word, str) else secrets[word % len(secrets)] for word in words)
    covered = {
        index
        for secret in secrets
        for at in range(len(data))
        if data.startswith(secret, at)
        for index in range(at, at + len(secret))
    }
    expected = "".join("*" if index in covered else mark for index, mark in enumerate(data))
    assert Mask.of(secrets).text(data) == expected


@settings(max_examples=100)
@given(
    st.lists(st.sampled_from([b"aabaab", b"abaaba1", b"a", b"b", b"\n"]), max_size=30),
    st.lists(st.integers(1, 9), min_size=1, max_size=40),
)
def test_however_the_output_grows_what_is_sent_is_the_whole_output_masked(
    tmp_path_factory: pytest.TempPathFactory, words: list[bytes], steps: list[int]
) -> None:
    whole, mask = b"".join(words), Mask.of(["aabaab", "abaaba1"])
    log = tmp_path_factory.mktemp("grows") / "output.log"
    log.write_bytes(b"")
    stream, sent, written = stream_of(log, mask=mask), b"", 0
    for step in steps:
        with log.open("ab") as file:
            file.write(whole[written : written + step])
        written = min(len(whole), written + step)
        sent += all_bytes(scanned(stream), ended=False, start=len(sent))
    sent += all_bytes(scanned(stream, ended=True), ended=True, start=len(sent))
    stream.close()
    assert sent == mask.hide(whole[:written])
