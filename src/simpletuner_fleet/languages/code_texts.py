"""Translates what the core gives as a code with parameters. The English is word for word what the API says."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.core.placement import matching, reason_sentences, reasons
from simpletuner_fleet.core.workers import job_groups
from simpletuner_fleet.languages.details import detail_text
from simpletuner_fleet.languages.numbers import in_language
from simpletuner_fleet.languages.words import Words

KINDS = {
    "wait": N_("it just takes time"),
    "change": N_("the request must be changed"),
    "admin": N_("an administrator must act"),
}


def reason_text(words: Words, explanation: Any) -> str:
    """Says why a job waits. Takes an Explanation, the API's view of one, or its JSON."""
    code, params = str(_part(explanation, "code") or ""), _part(explanation, "params") or {}
    english = str(_part(explanation, "sentence") or code)
    return _translated(words, [english], lambda: (reason_sentences.open_sentence(code, params),))[0]


def reason_label(words: Words, code: str) -> str:
    """Says the reason in a few words, for counting jobs by it; a code of another version is shown as it is."""
    return words.gettext(reasons.REASONS[code].label) if code in reasons.REASONS else code


def fix_texts(words: Words, explanation: Any) -> list[str]:
    """Says what would help, as far as the explanation itself does."""
    code, params = str(_part(explanation, "code") or ""), _part(explanation, "params") or {}
    english = [str(step) for step in _part(explanation, "fixes") or ()]
    return _translated(words, english, lambda: reason_sentences.open_fixes(code, params))


def _translated(
    words: Words, english: list[str], find_sentences: Callable[[], tuple[reason_sentences.Sentence, ...]]
) -> list[str]:
    """Translates the sentences; keeps the English if a server of another version says something else by this code."""
    try:
        sentences = find_sentences()
        if [text % blanks for text, blanks in sentences] == english:
            return [
                words.text(text, **{name: in_language(words.lang, blank) for name, blank in blanks.items()})
                for text, blanks in sentences
            ]
    except (KeyError, TypeError):
        pass
    return english


def groups_text(words: Words, labels: Mapping[str, str]) -> str:
    """Says what control groups do for the jobs of a worker with these labels; '' where it does not say."""
    pieces, why = job_groups.open_pieces(labels)
    facts = ", ".join(words.text(text, **blanks) for text, blanks in pieces)
    return f"{facts}: {words.gettext(why[0])}" if why else facts


def kind_text(words: Words, kind: str) -> str:
    """Says what a waiting job needs: time, another request, or an administrator."""
    return words.gettext(KINDS[kind]) if kind in KINDS else kind


def refusal_text(words: Words, name: str) -> str:
    """Says why one worker does not take a job; `name` is that of the verdict, in lower case."""
    refusal = matching.Refusal.__members__.get(name.upper())
    return words.gettext(refusal.value) if refusal else name


def funnel_texts(words: Words, funnel: Sequence[Any]) -> list[tuple[int, str]]:
    """Returns for each step how many workers are left after it, and what it was."""
    lines: list[tuple[int, str]] = []
    for step in funnel:
        left, name = int(_part(step, "left") or 0), str(_part(step, "step"))
        if lines and name.upper() in matching.Refusal.__members__:
            refused = words.text(
                "%(n)s ruled out: %(why)s", n=lines[-1][0] - left, why=refusal_text(words, name)
            )
            lines.append((left, refused))
        elif name == matching.EVERYBODY:
            lines.append((left, words.plural("%(n)s worker has joined", "%(n)s workers have joined", left)))
        else:
            lines.append((left, words.gettext(str(_part(step, "rule") or name))))
    return lines


def problem_title(words: Words, problem: Mapping[str, Any]) -> str:
    """Translates the title of one of our RFC 9457 documents: the titles are sentences of the catalogue."""
    return words.gettext(str(problem.get("title") or ""))


def problem_detail(words: Words, problem: Mapping[str, Any]) -> str:
    return detail_text(words, str(problem.get("detail") or ""))


def problem_next(words: Words, problem: Mapping[str, Any]) -> str:
    return detail_text(words, str(problem.get("next") or ""))


def _part(thing: Any, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)
