"""What the core gives as a code with parameters, told in a language. English is word for word what the API says."""

from collections.abc import Mapping, Sequence
from typing import Any

from simpletuner_fleet.core import failure, matching, reasons
from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.languages.words import Words

KINDS = {
    "wait": N_("it only takes time"),
    "change": N_("the request must change"),
    "admin": N_("an administrator must act"),
}
JOINED = N_("workers have joined")
DETAILS = {
    "forbidden": N_("This credential lacks the permission '%(permission)s'."),
    "too_many_requests": N_("Too many requests: try again in %(retry_after_s).0f s."),
}
"""Details of problems whose parameters travel beside them."""


def reason_text(words: Words, explanation: Any) -> str:
    """Why a job waits. Takes an Explanation, the API's view of one, or its JSON.

    A server of another version may give other parameters: then its own English stands.
    """
    code, params = _part(explanation, "code"), _part(explanation, "params")
    if code not in reasons.SENTENCES or params is None:
        return str(_part(explanation, "sentence") or code or "")
    try:
        text, blanks = reasons.reason(code, params)
        return words.text(text, **blanks)
    except (KeyError, TypeError):
        return str(_part(explanation, "sentence") or code)


def fix_texts(words: Words, explanation: Any) -> list[str]:
    """What would help; only where the explanation itself says so."""
    told = [str(step) for step in _part(explanation, "fixes") or ()]
    code, params = _part(explanation, "code"), _part(explanation, "params")
    if not told or code not in reasons.FIXES or params is None:
        return told
    try:
        return [words.text(text, **blanks) for text, blanks in reasons.steps(code, params)]
    except (KeyError, TypeError):
        return told


def kind_text(words: Words, kind: str) -> str:
    """What it takes: time, another request, or somebody with rights."""
    return words.gettext(KINDS[kind]) if kind in KINDS else kind


def refusal_text(words: Words, name: str) -> str:
    """Why one worker does not take a job; `name` as in the verdicts, in small letters."""
    try:
        return words.gettext(matching.Refusal[name.upper()].value)
    except KeyError:
        return name


def funnel_texts(words: Words, funnel: Sequence[Any]) -> list[tuple[int, str]]:
    """Each step: how many workers are left after it, and what it was."""
    told: list[tuple[int, str]] = []
    for step in funnel:
        left, name = int(_part(step, "left")), str(_part(step, "step"))
        if not told:
            told.append((left, words.gettext(JOINED)))
        else:
            gone = told[-1][0] - left
            told.append((left, f"{gone} {refusal_text(words, name)}"))
    return told


def failure_advice(words: Words, failure_class: str) -> str:
    return words.gettext(failure.advice_for(failure_class))


def problem_title(words: Words, problem: Mapping[str, Any]) -> str:
    """Of an RFC 9457 document of ours: the titles are sentences of the catalogue."""
    return words.gettext(str(problem.get("title") or ""))


def problem_detail(words: Words, problem: Mapping[str, Any]) -> str:
    """In the reader's language where the sentence is fixed or its parameters are known."""
    template = DETAILS.get(str(problem.get("code")))
    detail = str(problem.get("detail") or "")
    if template is None:
        return words.gettext(detail)
    try:
        return words.text(template, **problem)
    except (KeyError, TypeError):
        return detail


def problem_next(words: Words, problem: Mapping[str, Any]) -> str:
    return words.gettext(str(problem.get("next") or ""))


def _part(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
