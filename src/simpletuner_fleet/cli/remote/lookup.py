"""Finds what the user means: workers by id or else by name, jobs by id or a unique start of it."""

from collections.abc import Iterable
from typing import Any

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail
from simpletuner_fleet.cli.remote.api import Api, Json
from simpletuner_fleet.client.files.file_api import segment as segment
from simpletuner_fleet.core.configs.spelling import nearest
from simpletuner_fleet.core.training.checkpoint import NAME
from simpletuner_fleet.languages import _, ngettext

PAGE = 200
MAX_PAGES = 25


def workers(api: Api, **query: Any) -> list[dict[str, Any]]:
    return api.items("/api/admin/workers", "workers", {**query, "local": "true"}, lookup=True)


def meant(rows: Iterable[dict[str, Any]], name_or_id: str) -> list[dict[str, Any]]:
    """Returns the row that has this id, or else those that have this name, which may look like an id."""
    known = list(rows)
    return [row for row in known if row["id"] == name_or_id] or [
        row for row in known if row.get("name") == name_or_id
    ]


def worker(api: Api, name_or_id: str) -> dict[str, Any]:
    rows = workers(api)
    if matches := meant(rows, name_or_id):
        return matches[0]
    near = nearest(name_or_id, [str(one.get("name")) for one in rows])
    raise fail(
        _("there is no worker '%(called)s'", called=name_or_id),
        _("did you mean '%(near)s'?", near=near) if near else _("no worker has this id or name"),
        "simpletuner workers list",
        "not_found",
        ExitCode.NOT_FOUND,
    )


def worker_id(api: Api, name_or_id: str) -> str:
    return str(worker(api, name_or_id)["id"])


def job(api: Api, id_or_beginning: str) -> dict[str, Any]:
    try:
        return _as_job(api.get(f"/api/jobs/{segment(id_or_beginning)}", lookup=True))
    except CliError as error:
        if error.trouble.exit != ExitCode.NOT_FOUND:
            raise
    matches = _jobs_that_begin(api, id_or_beginning)
    if len(matches) == 1:
        return _as_job(api.get(f"/api/jobs/{segment(matches[0]['id'])}", lookup=True))
    some = ", ".join(row["id"] for row in matches[:5])
    raise fail(
        _("there is no job '%(called)s'", called=id_or_beginning)
        if not matches
        else ngettext(
            "'%(called)s' matches %(n)s job",
            "'%(called)s' matches %(n)s jobs",
            len(matches),
            called=id_or_beginning,
        ),
        _("including %(some)s", some=some)
        if matches
        else _("no job has this id, and no recent one starts with it"),
        "simpletuner jobs list",
        "ambiguous" if matches else "not_found",
        ExitCode.USAGE if matches else ExitCode.NOT_FOUND,
    )


def _jobs_that_begin(api: Api, beginning: str) -> list[dict[str, Any]]:
    """Returns the jobs whose id starts so; none for an empty text, such as a script's unset variable."""
    part = beginning.removeprefix("j_")
    if not part:
        return []
    return [row for row in pages(api, {}, PAGE * MAX_PAGES) if row["id"].startswith(f"j_{part}")]


def job_id(api: Api, id_or_beginning: str) -> str:
    return str(job(api, id_or_beginning)["id"])


def pages(api: Api, query: dict[str, Any], limit: int, *, lookup: bool = True) -> list[dict[str, Any]]:
    """Returns jobs, newest first unless the query says otherwise, read page by page until there are enough."""
    return counted_pages(api, query, limit, lookup=lookup)[0]


def counted_pages(
    api: Api, query: dict[str, Any], limit: int, *, lookup: bool = True
) -> tuple[list[dict[str, Any]], int | None]:
    """Returns jobs as `pages` does, and their total number; None where an older server does not tell it."""
    jobs: list[dict[str, Any]] = []
    cursor: str | None = None
    total: int | None = None
    while len(jobs) < limit:
        page_query = {**query, "limit": min(PAGE, limit - len(jobs)), "cursor": cursor}
        page = api.page("/api/jobs", "jobs", page_query, lookup=lookup)
        jobs += page["jobs"]
        total = page.get("total", total)
        cursor = page.get("next")
        if not cursor or not page["jobs"]:
            break
    return jobs[:limit], total


def _as_job(answer: Json) -> dict[str, Any]:
    """Returns the job. Its id is a plain name, since paths are made of it: of further calls and on this disk."""
    if isinstance(answer, dict) and NAME.fullmatch(str(answer.get("id"))) and "status" in answer:
        return answer
    raise fail(
        _("the answer is not a job"),
        _("it has no id or status"),
        _("verify orchestrator URL and port"),
        "E_NOT_A_JOB",
    )


def checkpoint(api: Api, text: str) -> str:
    """Returns JOB[:STEP] with the job's whole id; the start of the id is enough."""
    job, colon, step = text.partition(":")
    return f"{job_id(api, job)}{colon}{step}"
