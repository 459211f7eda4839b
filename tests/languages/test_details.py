"""Sentences of the API are recognised by their words, whatever fills their blanks, and whatever a stranger writes."""

import math
import time

import pytest

from simpletuner_fleet.languages import translator
from simpletuner_fleet.languages.details import BLANK, MAX_CHARS, MOST_WAYS, Sentence, _sentences, detail_text

PORTUGUESE = translator("pt-BR")


def filled(sentence: Sentence) -> str:
    return BLANK.sub(lambda blank: f"<{blank[1]}>", sentence.text).replace("%%", "%")


@pytest.mark.parametrize("sentence", _sentences(), ids=lambda sentence: sentence.text[:60])
def test_a_sentence_is_recognised_with_any_word_in_its_blanks(sentence: Sentence) -> None:
    match = sentence.match(filled(sentence))
    assert match is not None
    names = dict.fromkeys(BLANK.findall(sentence.text))
    assert "".join(match.groupdict().values()) == "".join(f"<{name}>" for name in names)


def test_a_word_that_holds_the_words_between_is_told_apart() -> None:
    english = "The quota night (of the lab) (running_jobs, all of us) is reached: 4 of 4 are used."
    translated = detail_text(PORTUGUESE, english)
    assert translated != english
    assert "night (of the lab)" in translated


@pytest.mark.parametrize(
    "sentence", [one for one in _sentences() if len(one.parts) > 3], ids=lambda one: one.text[:60]
)
def test_our_words_again_and_again_are_no_sentence_of_ours(sentence: Sentence) -> None:
    begin, *between, end = sentence.parts
    room = (MAX_CHARS - len(begin) - len(end)) // len(between)
    stranger = begin + "".join(part * (room // max(len(part), 1)) for part in between) + "\0" + end
    ways = math.prod(stranger.count(part) for part in between)
    began = time.process_time()
    matched = sentence.match(stranger)
    assert time.process_time() - began < 0.5
    assert matched is None or ways <= MOST_WAYS
