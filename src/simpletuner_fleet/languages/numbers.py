"""Formats numbers in sentences as each language writes them; tables and JSON are for programs and stay as they are."""

import re

ENGLISH_NUMBER = re.compile(r"(-?[0-9][0-9,]*)(\.[0-9]+)?( [A-Za-z]+)?")
THOUSANDS_BY_TWO = re.compile(r"(?<=[0-9])(?=(?:[0-9]{2})*[0-9]{3}$)")
SWAPPED = str.maketrans(",.", ".,")


def number_text(lang: str, value: float, digits: int = 0) -> str:
    return in_language(lang, f"{value:,.{digits}f}")


def in_language(lang: str, english: str) -> str:
    """Rewrites a number, with a unit or without, such as 1,234.5 GB or 2.50 USD; other text stays as it is."""
    match = ENGLISH_NUMBER.fullmatch(english)
    if match is None:
        return english
    whole, rest, unit = match[1], match[2] or "", match[3] or ""
    if lang == "pt-BR":
        return (whole + rest).translate(SWAPPED) + unit
    if lang == "hi" and "," in whole:
        whole = THOUSANDS_BY_TWO.sub(",", whole.replace(",", ""))
    return whole + rest + unit
