"""Chooses the language: what somebody has set, otherwise what their browser or machine says."""

from collections.abc import Mapping
from typing import NamedTuple

ENGLISH = "en"
PSEUDO = "qps-ploc"
"""Nobody's language: every sentence longer and with accents, to see what breaks a page."""


class Language(NamedTuple):
    code: str
    """As in the `lang` attribute of a page."""
    name: str
    """As its readers call it."""
    folder: str


LANGUAGES = (
    Language("en", "English", ""),
    Language("pt-BR", "Português (Brasil)", "pt_BR"),
    Language("hi", "हिन्दी", "hi"),
    Language("zh-Hans", "简体中文", "zh_Hans"),
    Language("ja", "日本語", "ja"),
)
FOLDERS = {language.code: language.folder for language in LANGUAGES}
_BY_BEGINNING = {language.code.partition("-")[0]: language.code for language in LANGUAGES} | {"qps": PSEUDO}
MAX_HEADER_CHARS = 1000


def known(tag: str | None) -> str | None:
    """Returns our code for a tag such as `pt`, `pt_PT.UTF-8` or `zh-CN`; None where we do not have the language."""
    beginning = (tag or "").strip().replace("_", "-").partition(".")[0].partition("@")[0].partition("-")[0]
    return _BY_BEGINNING.get(beginning.lower())


def choose(accept_language: str | None, cookie: str | None = None, user_setting: str | None = None) -> str:
    """Chooses the user's own setting, else the choice this browser remembers, else what the browser asks for."""
    return known(user_setting) or known(cookie) or _first_accepted(accept_language or "") or ENGLISH


def from_environment(environment: Mapping[str, str]) -> str:
    """Chooses `SIMPLETUNER_LANG`, else the language of the machine; the first variable that is set decides."""
    for name in ("SIMPLETUNER_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        if environment.get(name):
            return known(environment[name]) or ENGLISH
    return ENGLISH


def _first_accepted(header: str) -> str | None:
    accepted: list[tuple[float, str]] = []
    for part in header[:MAX_HEADER_CHARS].split(","):
        tag, _, parameter = part.partition(";")
        weight = _weight(parameter)
        if weight > 0 and (code := known(tag)):
            accepted.append((weight, code))
    return max(accepted, key=lambda item: item[0])[1] if accepted else None


def _weight(parameter: str) -> float:
    name, equals, value = parameter.strip().partition("=")
    if not equals or name.strip() != "q":
        return 1.0
    try:
        return min(1.0, float(value))
    except ValueError:
        return 0.0
