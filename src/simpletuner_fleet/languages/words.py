"""One language's words. The catalogue is read when the first of them is asked for."""

from functools import cached_property
from gettext import NullTranslations, translation
from pathlib import Path
from typing import Any

from simpletuner_fleet.languages.choosing import FOLDERS
from simpletuner_fleet.languages.numbers import number_text

DOMAIN = "fleet"
LOCALES = Path(__file__).parent / "locales"


class Words(NullTranslations):
    """The translations into one language.

    `text`, `plural` and `context` fill in the blanks; what gettext and Jinja2 know by name leaves them open.
    """

    def __init__(self, lang: str) -> None:
        super().__init__()
        self.lang = lang

    def text(self, msgid: str, /, **params: Any) -> str:
        return self.gettext(msgid) % params

    def plural(self, one: str, many: str, n: int, /, **params: Any) -> str:
        """`%(n)s` is filled in with the number."""
        return self.ngettext(one, many, n) % {"n": self.number(n), **params}

    def number(self, value: float, digits: int = 0) -> str:
        return number_text(self.lang, value, digits)

    def context(self, context: str, msgid: str, /, **params: Any) -> str:
        """Translates a word that means different things in different places."""
        return self.pgettext(context, msgid) % params

    def forms(self, one: str, many: str, /) -> list[str]:
        """Returns singular and plural, for a script that counts itself; one form where the language has one."""
        return list(dict.fromkeys((self.ngettext(one, many, 1), self.ngettext(one, many, 2))))

    def gettext(self, message: str, /) -> str:
        """A sentence that no catalogue knows comes back as it is."""
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
