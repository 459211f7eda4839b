"""Five languages: English stands in the code, the others in catalogues of gettext beside this file.

Every sentence is a whole one with named blanks, `%(name)s`; a percent sign in it is written `%%`.
"""

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.languages.choosing import ENGLISH, LANGUAGES, choose, from_environment, known
from simpletuner_fleet.languages.words import Words

__all__ = (
    "ENGLISH",
    "LANGUAGES",
    "N_",
    "Words",
    "_",
    "choose",
    "for_scripts",
    "html_lang",
    "known",
    "ngettext",
    "speak",
    "spoken",
    "status_word",
    "translations",
    "translator",
)

PSEUDO = "qps-ploc"
"""Nobody's language: every sentence longer and with accents, to see what breaks a page."""


@cache
def translator(lang: str) -> Words:
    """The words of a language, by any of its codes; English where we do not speak it."""
    if lang == PSEUDO:
        from simpletuner_fleet.languages.pseudo import PseudoWords  # nobody needs it but screenshots

        return PseudoWords()
    return Words(known(lang) or ENGLISH)


translations = translator


def html_lang(lang: str) -> str:
    return translator(lang).lang


_spoken = ENGLISH


def speak(environment: Mapping[str, str] = os.environ) -> None:
    """From now on this process talks to the person who set up its environment. For commands, not for servers."""
    global _spoken
    _spoken = from_environment(environment)


def spoken() -> Words:
    return translator(_spoken)


def _(msgid: str, /, **params: Any) -> str:
    """What a command says, in the language of whoever called it."""
    return spoken().text(msgid, **params)


def ngettext(one: str, many: str, n: int, /, **params: Any) -> str:
    return spoken().plural(one, many, n, **params)


def for_scripts(lang: str) -> dict[str, Any]:
    """What a page gives its scripts as JSON: `messages` by English text, `plurals` as lists of forms."""
    from simpletuner_fleet.languages.scripts import messages_of  # only the console needs it

    return messages_of(translator(lang))


def status_word(words: Words, kind: str, status: str) -> str:
    """`kind`: job or worker."""
    from simpletuner_fleet.languages.names import status_name  # a command that shows no status needs no table

    return status_name(words, kind, status)
