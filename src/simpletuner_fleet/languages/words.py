"""Translates into one language. The catalogue is read when the first message is asked for."""

from functools import cached_property
from gettext import NullTranslations, translation
from pathlib import Path
from typing import Any

from simpletuner_fleet.languages.choosing import FOLDERS
from simpletuner_fleet.languages.numbers import number_text

DOMAIN = "fleet"
LOCALES = Path(__file__).parent / "locales"


class Words(NullTranslations):
    """Holds the translations into one language.

    `text`, `plural` and `context` fill in the placeholders; the methods of gettext and Jinja2 leave them open.
    """

    def __init__(self, lang: str) -> None:
        super().__init__()
        self.lang = lang

    def text(self, msgid: str, /, **params: Any) -> str:
        return self.gettext(msgid) % params

    def plural(self, one: str, many: str, n: int, /, **params: Any) -> str:
        """Translates a singular or plural; `%(n)s` is filled in with the number."""
        return self.ngettext(one, many, n) % {"n": self.number(n), **params}

    def number(self, value: float, digits: int = 0) -> str:
        return number_text(self.lang, value, digits)

    def context(self, context: str, msgid: str, /, **params: Any) -> str:
        """Translates a word that means different things in different contexts."""
        return self.pgettext(context, msgid) % params

    def forms(self, one: str, many: str, /) -> list[str]:
        """Returns singular and plural, for a script that counts itself; one form where the language has only one."""
        return list(dict.fromkeys((self.ngettext(one, many, 1), self.ngettext(one, many, 2))))

    def gettext(self, message: str, /) -> str:
        """Translates a message; one that is not in the catalogue is returned as it is."""
        return self._catalogue.gettext(message) if message else ""

    def ngettext(self, msgid1: str, msgid2: str, n: int, /) -> str:
        return self._catalogue.ngettext(msgid1, msgid2, n)

    def pgettext(self, context: str, message: str, /) -> str:
        return self._catalogue.pgettext(context, message)

    def npgettext(self, context: str, msgid1: str, msgid2: str, n: int, /) -> str:
        return self._catalogue.npgettext(context, msgid1, msgid2, n)

    @cached_property
    def _catalogue(self) -> NullTranslations:
        folder = FOLDERS[self.lang]
        return translation(DOMAIN, LOCALES, [folder]) if folder else NullTranslations()
