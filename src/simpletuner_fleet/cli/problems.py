"""The server's RFC 9457 problems as messages of ours with exit codes."""

import json
from typing import Any

from simpletuner_fleet.agent.troubles import trouble
from simpletuner_fleet.cli.connection import Connection
from simpletuner_fleet.cli.errors import CliError, Exit, fail

EXIT_OF_STATUS = {
    400: Exit.USAGE,
    401: Exit.AUTH,
    403: Exit.AUTH,
    404: Exit.NOT_FOUND,
    408: Exit.TIMEOUT,
    409: Exit.CONFLICT,
    413: Exit.USAGE,
    422: Exit.USAGE,
    504: Exit.TIMEOUT,
}
EXIT_OF_CODE = {"cannot_be_placed": Exit.CANNOT_PLACE}
WHAT_OF_STATUS = {
    400: "the request was not understood",
    403: "not allowed",
    404: "not found",
    409: "not possible now",
    413: "too large",
    422: "a value is not acceptable",
    429: "too many requests",
    503: "the server cannot take this now",
}


def problem_of(status: int, body: bytes, where: Connection) -> CliError:
    problem = _document(body)
    code = str(problem.get("code") or f"http_{status}")
    detail = str(problem.get("detail") or problem.get("title") or f"HTTP status {status}")
    if status == 401:
        return _not_let_in(code, detail, where)
    next_step = str(problem.get("next") or _usual_next(status, problem))
    return fail(
        WHAT_OF_STATUS.get(status, "the server refused"),
        "; ".join([detail, *_field_errors(problem, detail)]),
        next_step,
        code,
        EXIT_OF_CODE.get(code) or EXIT_OF_STATUS.get(status, Exit.FAILED),
    )


def _not_let_in(code: str, detail: str, where: Connection) -> CliError:
    if not where.token:
        return fail(
            f"not logged in to {where.url}",
            "no API token was found for this server",
            ("simpletuner login " + where.url, "or set SIMPLETUNER_API_TOKEN"),
            code,
            Exit.AUTH,
        )
    told = trouble(
        "E_INVALID_TOKEN",
        where.url,
        detail=f"{detail.removeprefix('Invalid token: ')} (it came from: {where.token_from})",
    )
    return CliError(told._replace(next=(*told.next, "log in again: simpletuner login " + where.url)))


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _field_errors(problem: dict[str, Any], detail: str) -> list[str]:
    errors = problem.get("errors")
    if not isinstance(errors, list):
        return []
    fields = [error for error in errors if isinstance(error, dict)]
    said = [f"{error.get('path', '$')}: {error.get('detail', '')}" for error in fields]
    return (
        said if len(said) != 1 or fields[0].get("detail") != detail else [f"at {fields[0].get('path', '$')}"]
    )


def _usual_next(status: int, problem: dict[str, Any]) -> str:
    if status == 403:
        wanted = problem.get("permission", "it")
        return f"ask an administrator for a token with {wanted}:  simpletuner tokens create NAME --permission {wanted}"
    if status == 404:
        return "list what is there:  simpletuner jobs list, workers list, configs list"
    return "simpletuner doctor"
