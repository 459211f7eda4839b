"""Writes a reason for waiting as a sentence, and what would help: in English, or with blanks to translate."""

from typing import Any

from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.core.placement.reasons import REASONS, Code

POOLS_RESERVED = N_("no worker has joined yet, and every pool is reserved for other people or teams")
POOL_UNREACHABLE = N_("no worker fits, and the pool %(pool)s cannot be asked for a machine: %(trouble)s")
MACHINE_BOOTS = N_(
    "waiting for a machine of the pool %(pool)s: %(provider)s, %(machine)s, %(price)s an hour, booting for %(since_s)s s"
)
QUOTA_UNTIL = N_(
    "the quota %(quota)s is reached (%(kind)s, %(whose)s): %(used)s of %(ceiling)s until %(frees)s"
)
ABOUT_TO_BE_TOLD = N_("what it waited for has ended (%(ended)s): it is told in a moment")
LABEL_DIFFERS = N_("no worker has the required label %(asked)s (%(have)s)")
LABELS_APART = N_("no worker has the required combination of labels: %(asked)s")
LABELS_APART_DIFFER = N_("no worker has the required combination of labels: %(asked)s (%(have)s)")
MORE_AT_ONCE = N_(
    "%(full_worker)s has unused GPUs (%(idle_gpus)s), but its limit of jobs at a time is %(at_once)s: "
    "start it with --max-jobs auto."
)

Sentence = tuple[str, dict[str, str]]
"""A sentence with its blanks open, and what belongs into them."""


def sentence(code: str, params: dict[str, Any]) -> str:
    """Returns the reason in English; other languages have the code and the parameters."""
    text, blanks = open_sentence(code, params)
    return text % blanks


def fixes(code: str, params: dict[str, Any]) -> tuple[str, ...]:
    """Returns what would help, in English."""
    return tuple(text % blanks for text, blanks in open_fixes(code, params))


def open_sentence(code: str, params: dict[str, Any]) -> Sentence:
    """Returns the reason before its blanks are filled. Raises KeyError for a code of another version."""
    if code == Code.LABELS_MATCH_NONE:
        return _labels_sentence(params), _blanks(params)
    if code == Code.DEPENDENCY and "ended" in params:
        return ABOUT_TO_BE_TOLD, _blanks(params)
    if code == Code.QUOTA and "frees" in params:
        return QUOTA_UNTIL, _blanks(params)
    if code == Code.WAITING_FOR_MACHINE and params.get("phase") == "booting":
        return MACHINE_BOOTS, _blanks(params)
    if code == Code.KEPT_FOR_OTHERS and "pools" in params:
        return POOLS_RESERVED, _blanks(params)
    if code == Code.ASKING_FOR_MACHINE and params.get("trouble"):
        return POOL_UNREACHABLE, _blanks(params)
    return REASONS[code].sentence, _blanks(params)


def _labels_sentence(params: dict[str, Any]) -> str:
    """Returns what is said of one label that nobody has, or of several that nobody has together."""
    if params["unmatched"]:
        return LABEL_DIFFERS if params["have"] else REASONS[Code.LABELS_MATCH_NONE].sentence
    return LABELS_APART_DIFFER if params["have"] else LABELS_APART


def open_fixes(code: str, params: dict[str, Any]) -> tuple[Sentence, ...]:
    """Returns what would help, before the blanks are filled. Raises KeyError for a code of another version."""
    more = (MORE_AT_ONCE,) if "full_worker" in params else ()
    return tuple((text, _blanks(params)) for text in (*more, *REASONS[code].fixes))


def _blanks(params: dict[str, Any]) -> dict[str, str]:
    blanks = {name: _shown(name, value) for name, value in params.items()}
    for name, source in (("data_gb", "bytes"), ("largest_data_gb", "largest_bytes")):
        if source in params:
            blanks[name] = f"{params[source] / 1e9:.1f}"
    return blanks


def _shown(name: str, value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(part) for part in value)
    if isinstance(value, float):
        return f"{value:.0f}" if name.endswith("_s") else f"{value:g}"
    return str(value)
