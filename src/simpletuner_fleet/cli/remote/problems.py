"""Turns the server's RFC 9457 problems into messages of ours with exit codes."""

from typing import Any

import msgspec

from simpletuner_fleet.cli.frame.errors import CliError, ExitCode, fail
from simpletuner_fleet.client.connection import ConnectionSettings
from simpletuner_fleet.client.troubles import ForeignAnswer, of_connection_error
from simpletuner_fleet.languages import N_, _, current
from simpletuner_fleet.languages.code_texts import problem_detail, problem_next, problem_title
from simpletuner_fleet.protocol.problems import read_problem

EXIT_OF_STATUS = {
    400: ExitCode.USAGE,
    401: ExitCode.AUTH,
    403: ExitCode.AUTH,
    404: ExitCode.NOT_FOUND,
    408: ExitCode.TIMEOUT,
    409: ExitCode.CONFLICT,
    413: ExitCode.USAGE,
    422: ExitCode.USAGE,
    504: ExitCode.TIMEOUT,
}
REFUSED = N_("the server refused")
EXIT_OF_CODE = {"cannot_be_placed": ExitCode.CANNOT_PLACE}
WHAT_OF_STATUS = {
    400: N_("the request was not understood"),
    403: N_("not permitted"),
    404: N_("not found"),
    409: N_("not possible now"),
    413: N_("too large"),
    422: N_("a value is not valid"),
    429: N_("too many requests"),
    503: N_("the server cannot take this now"),
}


def problem_of(status: int, body: bytes, where: ConnectionSettings) -> CliError:
    if read_problem(status, body) is None:
        return CliError(of_connection_error(ForeignAnswer(status), where.url))
    problem = msgspec.json.decode(body, type=dict[str, Any])
    code = str(problem["code"])
    detail = (
        problem_detail(current(), problem)
        or problem_title(current(), problem)
        or _("HTTP status %(status)s", status=status)
    )
    if status == 401:
        return _not_let_in(code, detail, where)
    next_step = problem_next(current(), problem) or _usual_next(status, problem)
    what = WHAT_OF_STATUS.get(status, REFUSED)
    fields = _field_errors(problem)
    return fail(
        _(what),
        "; ".join([detail.removesuffix("."), *fields]) if fields else detail,
        next_step,
        code,
        EXIT_OF_CODE.get(code) or EXIT_OF_STATUS.get(status, ExitCode.FAILED),
    )


def _not_let_in(code: str, detail: str, where: ConnectionSettings) -> CliError:
    if not where.token:
        return fail(
            _("not logged in to %(url)s", url=where.url),
            _("no API token was found for this server"),
            ("simpletuner login " + where.url, _("or set SIMPLETUNER_API_TOKEN")),
            code,
            ExitCode.AUTH,
        )
    return fail(
        _("Invalid token: the server at %(url)s does not know this API token", url=where.url),
        _(
            "%(detail)s (it came from: %(where)s)",
            detail=detail.removeprefix("Invalid token: "),
            where=where.token_from,
        ),
        (
            _("log in again: simpletuner login %(url)s", url=where.url),
            _("or ask an administrator for a new one:  simpletuner tokens create NAME"),
            _("check for whitespace in the token string"),
        ),
        "E_INVALID_TOKEN",
        ExitCode.AUTH,
    )


def _field_errors(problem: dict[str, Any]) -> list[str]:
    fields = _errors(problem)
    lines = [f"{error.get('path', '$')}: {error.get('detail', '')}" for error in fields]
    if len(lines) != 1 or fields[0].get("detail") != problem.get("detail"):
        return lines
    return [_("at %(path)s", path=fields[0].get("path", "$"))]


def _usual_next(status: int, problem: dict[str, Any]) -> str:
    if status == 403:
        permission = problem.get("permission", "it")
        return _(
            "ask an administrator for a token with %(wanted)s:  "
            "simpletuner tokens create NAME --permission %(wanted)s",
            wanted=permission,
        )
    if status == 404:
        return _("check the id or name; the command's verb 'list' shows what exists")
    if status in (400, 413, 422):
        fields = [str(error.get("path", "")).removeprefix("$.") for error in _errors(problem)]
        named = ", ".join(field for field in fields if field and field != "$")
        return (
            _("change %(fields)s and try again", fields=named)
            if named
            else _("change the request as the line above says, and try again")
        )
    if status == 409:
        return _("see how things are now:  simpletuner status")
    if status in (429, 503):
        return _("wait a little and try again; if it stays so:  simpletuner doctor")
    return "simpletuner doctor"


def _errors(problem: dict[str, Any]) -> list[dict[str, Any]]:
    errors = problem.get("errors")
    return [error for error in errors if isinstance(error, dict)] if isinstance(errors, list) else []
