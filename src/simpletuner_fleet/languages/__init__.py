"""Translates into five languages: English is in the code, the others in gettext catalogues beside this file.

Every message is a whole sentence with named placeholders, `%(name)s`; a percent sign in it is written `%%`.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.languages.choosing import ENGLISH, LANGUAGES, PSEUDO, choose, from_environment, known
from simpletuner_fleet.languages.words import Words

__all__ = (
    "ENGLISH",
    "LANGUAGES",
    "N_",
    "Words",
    "_",
    "choose",
    "current",
    "for_scripts",
    "known",
    "ngettext",
    "speak",
    "spoken_in",
    "translator",
)


def translator(lang: str) -> Words:
    """Returns the translations into a language, given by any of its codes; English where we do not have it."""
    return _words(known(lang) or ENGLISH)


@cache
def _words(code: str) -> Words:
    if code == PSEUDO:
        from simpletuner_fleet.languages.pseudo import PseudoWords  # nobody needs it but screenshots

        return PseudoWords()
    return Words(code)


_process = ENGLISH
_here: ContextVar[Words | None] = ContextVar("simpletuner_words", default=None)


def speak(environment: Mapping[str, str] = os.environ) -> None:
    """Makes this process use the language that its environment asks for."""
    global _process
    _process = from_environment(environment)


@contextmanager
def spoken_in(words: Words) -> Iterator[Words]:
    """Makes `_` translate into the given language within this block, and only for this task."""
    token = _here.set(words)
    try:
        yield words
    finally:
        _here.reset(token)


def current() -> Words:
    return _here.get() or translator(_process)


def _(msgid: str, /, **params: Any) -> str:
    return current().text(msgid, **params)


def ngettext(one: str, many: str, n: int, /, **params: Any) -> str:
    return current().plural(one, many, n, **params)


def spoken_number(value: float, digits: int = 0) -> str:
    """Formats a number for a sentence, as the reader's language writes it."""
    return current().number(value, digits)


def for_scripts(lang: str) -> dict[str, Any]:
    """Returns what a page gives its scripts as JSON: `messages` by English text, `plurals` as lists of forms."""
    from simpletuner_fleet.languages.scripts import messages_of  # only the console needs it

    return messages_of(translator(lang))
