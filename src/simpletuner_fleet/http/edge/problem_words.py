"""Translates problems into the language of the person at the browser. Programs get English, and the code."""

from collections.abc import Mapping
from typing import Any

import msgspec

from simpletuner_fleet.http.access.auth import Principal
from simpletuner_fleet.http.access.hosts import comes_from_browser
from simpletuner_fleet.http.access.sessions import COOKIE, SECURE_COOKIE
from simpletuner_fleet.http.edge.problems import ProblemAnswer
from simpletuner_fleet.languages import ENGLISH, choose, translator
from simpletuner_fleet.languages.code_texts import problem_detail, problem_next, problem_title

LANGUAGE_COOKIE = "simpletuner_lang"


def asks_for_a_person(headers: Mapping[str, str]) -> bool:
    """Tells whether a page of ours asks: with a session or, before the log-in, with headers that only browsers send."""
    cookies = cookie_values(headers)
    return COOKIE in cookies or SECURE_COOKIE in cookies or comes_from_browser(headers)


def language_for(headers: Mapping[str, str], principal: Principal) -> str:
    chosen = cookie_values(headers).get(LANGUAGE_COOKIE)
    return choose(headers.get("accept-language"), chosen, principal.language)


def in_words_of(problem: ProblemAnswer, headers: Mapping[str, str], principal: Principal) -> ProblemAnswer:
    language = language_for(headers, principal)
    if language == ENGLISH:
        return problem
    words, document = translator(language), _document(problem)
    document["title"] = problem_title(words, document)
    document["detail"] = problem_detail(words, document)
    if "next" in document:
        document["next"] = problem_next(words, document)
    return ProblemAnswer(
        problem.status,
        msgspec.json.encode(document),
        (*problem.headers, (b"content-language", language.encode())),
    )


def cookie_values(headers: Mapping[str, str]) -> dict[str, str]:
    parts = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return {name: value for name, _, value in parts if name}


def _document(problem: ProblemAnswer) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(problem.body)
    return document
