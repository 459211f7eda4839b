"""Guesses which word was meant. A comparison is slow, so nobody's long or many words are compared for long."""

import difflib
from collections.abc import Iterable
from itertools import islice

MOST_LETTERS = 64
"""Whatever is longer is no slip of the pen."""
MOST_WORDS = 1_000


def nearest(word: str, words: Iterable[str], likeness: float = 0.6) -> str | None:
    """Returns the one that resembles the word most, or None where none does, or the word is no name of ours anyway."""
    if len(word) > MOST_LETTERS:
        return None
    near = difflib.get_close_matches(word, list(islice(words, MOST_WORDS)), n=1, cutoff=likeness)
    return near[0] if near else None
