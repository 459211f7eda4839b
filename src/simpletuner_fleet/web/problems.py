"""When a page cannot be shown: to the log-in, or what is wrong and what to do."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from simpletuner_fleet.http.problems import ProblemAnswer
from simpletuner_fleet.http.routes import Reply
from simpletuner_fleet.languages import LANGUAGES, choose, spoken_in, translator
from simpletuner_fleet.languages.told import problem_detail, problem_next, problem_title
from simpletuner_fleet.web.cookies import cookies_of
from simpletuner_fleet.web.environment import environment
from simpletuner_fleet.web.page import LANGUAGE_COOKIE, PAGE_HEADERS, THEME_COOKIE, THEMES

UNAUTHORIZED = 401
SEE_OTHER = 303


def problem_page(problem: ProblemAnswer, headers: Mapping[str, str], path: str) -> Reply:
    if problem.status == UNAUTHORIZED:
        return Reply(
            body=b"", status=SEE_OTHER, headers={**PAGE_HEADERS, "location": f"/login?next={quote(path)}"}
        )
    kept = cookies_of(headers)
    told: dict[str, Any] = msgspec.json.decode(problem.body)
    language = choose(headers.get("accept-language"), kept.get(LANGUAGE_COOKIE))
    theme = kept.get(THEME_COOKIE, "auto")
    with spoken_in(translator(language)) as words:
        text = (
            environment()
            .get_template("problem.html")
            .render(
                language=language,
                languages=LANGUAGES,
                theme=theme if theme in THEMES else "auto",
                now="",
                caller="",
                title=problem_title(words, told),
                detail=problem_detail(words, told),
                following=problem_next(words, told),
                code=told.get("code", ""),
            )
        )
    return Reply(
        body=text.encode(),
        status=problem.status,
        content_type="text/html; charset=utf-8",
        headers=PAGE_HEADERS,
    )
