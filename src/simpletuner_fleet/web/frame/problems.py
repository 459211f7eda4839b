"""Shows the log-in where a page cannot be shown, or what is wrong and what to do."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from simpletuner_fleet.http.access.auth import Principal
from simpletuner_fleet.http.edge.problem_words import language_for
from simpletuner_fleet.http.edge.problems import ProblemAnswer
from simpletuner_fleet.http.edge.routes import Reply
from simpletuner_fleet.languages import LANGUAGES, spoken_in, translator
from simpletuner_fleet.languages.code_texts import problem_detail, problem_next, problem_title
from simpletuner_fleet.web.frame.cookies import cookies_of
from simpletuner_fleet.web.frame.environment import environment
from simpletuner_fleet.web.frame.navigation import navigation
from simpletuner_fleet.web.frame.page import PAGE_HEADERS, THEME_COOKIE, THEMES
from simpletuner_fleet.web.guide.help_links import help_link

UNAUTHORIZED = 401
SEE_OTHER = 303


def problem_page(
    problem: ProblemAnswer, headers: Mapping[str, str], path: str, principal: Principal
) -> Reply:
    """Shows the problem; within the console, with its navigation, to whoever is logged in, and alone to others."""
    if problem.status == UNAUTHORIZED:
        return Reply(
            body=b"", status=SEE_OTHER, headers={**PAGE_HEADERS, "location": f"/login?next={quote(path)}"}
        )
    document: dict[str, Any] = msgspec.json.decode(problem.body)
    language = language_for(headers, principal)
    theme = cookies_of(headers).get(THEME_COOKIE, "auto")
    places = navigation(principal, "")
    with spoken_in(translator(language)) as words:
        text = (
            environment()
            .get_template("frame/problem_within.html" if places else "frame/problem.html")
            .render(
                language=language,
                languages=LANGUAGES,
                theme=theme if theme in THEMES else "auto",
                principal=principal,
                navigation=places,
                here="/",
                help=help_link(path),
                insecure=False,
                only_regions=False,
                now="",
                newest_event=0,
                caller=principal.id if places else "",
                title=problem_title(words, document),
                detail=problem_detail(words, document),
                following=problem_next(words, document),
                code=document.get("code", ""),
                permission=str(document.get("permission", "")),
            )
        )
    return Reply(
        body=text.encode(),
        status=problem.status,
        content_type="text/html; charset=utf-8",
        headers=PAGE_HEADERS,
    )
