"""What a person calls a thing, to the thing itself: workers by id or name, jobs by id or a unique beginning of it."""

from typing import Any
from urllib.parse import quote

from simpletuner_fleet.cli.frame.errors import CliError, Exit, fail
from simpletuner_fleet.cli.remote.api import Api, Json
from simpletuner_fleet.languages import _, ngettext

PAGE = 200
MAX_PAGES = 25


def segment(text: str) -> str:
    """Safe as one segment of a path."""
    return quote(text, safe="")


def workers(api: Api, **query: Any) -> list[dict[str, Any]]:
    return api.items("/api/admin/workers", "workers", {**query, "local": "true"}, lookup=True)


def worker(api: Api, called: str) -> dict[str, Any]:
    known = workers(api)
    for key in ("id", "name"):
        for candidate in known:
            if candidate.get(key) == called:
                return candidate
    raise fail(
        _("there is no worker '%(called)s'", called=called),
        _("no worker has this id or name"),
        "simpletuner workers list",
        "not_found",
        Exit.NOT_FOUND,
    )


def worker_id(api: Api, called: str) -> str:
    if called.startswith("w_"):
        return called
    return str(worker(api, called)["id"])


def job(api: Api, called: str) -> dict[str, Any]:
    try:
        return _as_job(api.get(f"/api/jobs/{segment(called)}", lookup=True))
    except CliError as error:
        if error.trouble.exit != Exit.NOT_FOUND:
            raise
    begins = called if called.startswith("j_") else f"j_{called}"
    matches = [found for found in pages(api, {}, PAGE * MAX_PAGES) if found["id"].startswith(begins)]
    if len(matches) == 1:
        return _as_job(api.get(f"/api/jobs/{segment(matches[0]['id'])}", lookup=True))
    some = ", ".join(found["id"] for found in matches[:5])
    raise fail(
        _("there is no job '%(called)s'", called=called)
        if not matches
        else ngettext(
            "'%(called)s' is the beginning of %(n)s job",
            "'%(called)s' is the beginning of %(n)s jobs",
            len(matches),
            called=called,
        ),
        _("among them %(some)s", some=some)
        if matches
        else _("no job has this id, and none of the newest begins so"),
        "simpletuner jobs list",
        "ambiguous" if matches else "not_found",
        Exit.USAGE if matches else Exit.NOT_FOUND,
    )


def job_id(api: Api, called: str) -> str:
    return str(job(api, called)["id"])


def pages(api: Api, query: dict[str, Any], limit: int, *, lookup: bool = True) -> list[dict[str, Any]]:
    """Jobs, newest first, page by page until there are enough."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while len(found) < limit:
        asked = {**query, "limit": min(PAGE, limit - len(found)), "cursor": cursor}
        page = api.page("/api/jobs", "jobs", asked, lookup=lookup)
        found += page["jobs"]
        cursor = page.get("next")
        if not cursor or not page["jobs"]:
            break
    return found[:limit]


def _as_job(answer: Json) -> dict[str, Any]:
    if isinstance(answer, dict) and "id" in answer and "status" in answer:
        return answer
    raise fail(
        _("the answer is no job"),
        _("it has no id or status"),
        _("verify orchestrator URL and port"),
        "E_NOT_A_JOB",
    )
