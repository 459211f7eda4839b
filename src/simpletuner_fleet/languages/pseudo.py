"""Makes a language for testing: accents, and 40 % more characters; placeholders and HTML tags stay as they are."""

import math
import re

from simpletuner_fleet.languages.words import Words

KEPT = re.compile(r"%\(\w+\)\w|%%|<[^>]*>|&\w+;|`[^`]*`")
ACCENTS = str.maketrans("aeiouyncszAEIOUYNCSZ", "áéíöüýñçšžÁÉÍÖÜÝÑÇŠŽ")
GROWTH = 0.4


class PseudoWords(Words):
    def __init__(self) -> None:
        super().__init__("en")

    def gettext(self, message: str, /) -> str:
        return stretched(message)

    def ngettext(self, msgid1: str, msgid2: str, n: int, /) -> str:
        return stretched(msgid1 if n == 1 else msgid2)

    def pgettext(self, context: str, message: str, /) -> str:
        return stretched(message)

    def npgettext(self, context: str, msgid1: str, msgid2: str, n: int, /) -> str:
        return self.ngettext(msgid1, msgid2, n)


def stretched(text: str) -> str:
    if not text:
        return ""
    parts = KEPT.split(text)
    marks = [*KEPT.findall(text), ""]
    accented = "".join(part.translate(ACCENTS) + mark for part, mark in zip(parts, marks, strict=True))
    return f"[{accented}{'·' * math.ceil(len(''.join(parts)) * GROWTH)}]"
