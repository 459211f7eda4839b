"""Nothing from elsewhere steers the terminal."""

import json
import random
import re
import time

import pytest

from simpletuner_fleet.cli.frame.text import DANGEROUS, TerminalLogText, clean, clean_lines, harmless_json

CORPUS = [
    "\x1b[31mred\x1b[0m",
    "\x1b[2J\x1b[H",
    "\x1b]0;title\x07",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "\x1bP1$r0m\x1b\\",
    "\x1b_G payload\x1b\\",
    "\x1b[6n",
    "\x1b[?1049h",
    "\x1bc",
    "\x1b(0",
    "\x9b31m",
    "\x9d0;t\x9c",
    "a\rb",
    "a\bb\b",
    "\x07" * 3,
    "safe\u202eesrever\u202c",
    "zero\u200bwidth\u2066x\u2069",
    "line\u2028sep",
    "\x00nul\x7fdel",
    "\ud800lone",
    "\x1b[",
    "\x1b",
    "tag\U000e0041",
]


@pytest.mark.parametrize("text", CORPUS)
def test_a_table_cell_holds_no_control_character(text: str) -> None:
    assert not DANGEROUS.search(clean(text))
    assert clean(text).encode()


@pytest.mark.parametrize("text", CORPUS)
def test_json_on_a_terminal_holds_none_and_means_the_same(text: str) -> None:
    shown = harmless_json(json.dumps({"name": text, text: 1}, ensure_ascii=False, indent=2))
    assert not DANGEROUS.search(shown.replace("\n", ""))
    assert json.loads(shown) == {"name": text, text: 1}


@pytest.mark.parametrize("text", CORPUS)
def test_a_log_holds_only_line_ends_and_tabs(text: str) -> None:
    log = TerminalLogText()
    shown = log.feed(text.encode("utf-8", "surrogatepass")) + log.feed(b"", last=True)
    assert not DANGEROUS.search(shown.replace("\n", "").replace("\t", ""))


def test_a_log_is_the_same_however_it_is_cut() -> None:
    whole = "".join(f"{text} línea 訓練\r\n\tstep\r" for text in CORPUS if "\ud800" not in text).encode()
    log = TerminalLogText()
    expected = log.feed(whole) + log.feed(b"", last=True)
    for seed in range(200):
        choose = random.Random(seed)
        log, shown, at = TerminalLogText(), "", 0
        while at < len(whole):
            size = choose.randint(1, 7)
            shown += log.feed(whole[at : at + size])
            at += size
        shown += log.feed(b"", last=True)
        assert shown == expected, f"seed {seed}"


BEGINNINGS = [
    "\x9d",
    "\x90",
    "\x98",
    "\x9e",
    "\x9f",
    "\x9b",
    "\x1b",
    "\x1b]",
    "\x1bP",
    "\x1bX",
    "\x1b^",
    "\x1b_",
    "\x1b[",
]
ENDS = ["\x07", "\x1b\\", "\x9c", "m", "x\x1by"]
MANY_CHARS = 200_000


@pytest.mark.parametrize("beginning", [*BEGINNINGS, "".join(BEGINNINGS), "".join(BEGINNINGS[:6])], ids=ascii)
def test_any_number_of_sequences_that_never_end_is_read_at_once(beginning: str) -> None:
    log = TerminalLogText(colours=True)
    data = (beginning * (MANY_CHARS // len(beginning)) + "x\x1by").encode()
    began = time.process_time()
    shown = log.feed(data) + log.feed(b"", last=True)
    assert time.process_time() - began < 2.0
    assert not DANGEROUS.search(shown)


def test_whatever_a_log_is_made_of_no_control_character_remains() -> None:
    pieces = [*BEGINNINGS, *ENDS, "\x85", "\x00", "\u202e", " ", "0;1", "text", "訓", "\r", "\n", "\t", "\\"]
    for seed in range(500):
        choose = random.Random(seed)
        whole = "".join(choose.choices(pieces, k=60)).encode()
        log, shown, at = TerminalLogText(), "", 0
        while at < len(whole):
            size = choose.randint(1, 40)
            shown += log.feed(whole[at : at + size])
            at += size
        shown += log.feed(b"", last=True)
        assert not DANGEROUS.search(shown.replace("\n", "").replace("\t", "")), f"seed {seed}"


@pytest.mark.parametrize(
    "beginning", ["\x9d", "\x90", "\x98", "\x9e", "\x9f", "\x1b]", "\x1bP", "\x1bX", "\x1b^", "\x1b_"]
)
@pytest.mark.parametrize("end", ["\x07", "\x1b\\", "\x9c"])
def test_a_string_for_the_terminal_goes_with_all_it_says(beginning: str, end: str) -> None:
    log = TerminalLogText()
    assert log.feed(f"a{beginning}0;the title\n訓練{end}b".encode()) == "ab"


def test_a_string_that_another_one_interrupts_is_shown_and_the_other_goes() -> None:
    assert TerminalLogText().feed("a\x9d0;one\x9d0;two\x07b".encode()) == "a\\x9d0;oneb"


def test_colours_go_and_words_stay() -> None:
    assert TerminalLogText().feed(b"\x1b[1;32mloss\x1b[0m 0.5\tok\n") == "loss 0.5\tok\n"


def test_progress_bars_become_lines() -> None:
    assert TerminalLogText().feed(b"10%\r20%\r\n") == "10%\n20%\n"


def test_an_endless_sequence_is_not_kept_for_ever() -> None:
    log = TerminalLogText()
    shown = log.feed(b"\x1b]" + b"x" * 10_000)
    assert len(shown) > 9_000
    assert "\x1b" not in shown


def test_ordinary_text_of_any_language_is_left_alone() -> None:
    for text in ("gpu-worker-1", "訓練ジョブ", "प्रशिक्षण", "configuração", "😀 ok", "a=b, c"):
        assert clean(text) == text
        assert TerminalLogText().feed(text.encode()) == text


def test_messages_keep_their_lines() -> None:
    assert clean_lines("error: a\n  why:  \x1b[31mb") == "error: a\n  why:  \\x1b[31mb"


def test_the_corpus_is_truly_dangerous() -> None:
    assert all(DANGEROUS.search(text) for text in CORPUS)
    assert re.search(DANGEROUS, "\n")
