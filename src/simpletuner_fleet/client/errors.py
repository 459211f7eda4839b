"""Defines what a client raises: each error says what happened, why, what to do next, and has a stable code."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from simpletuner_fleet.client.troubles import AUTH as NOT_LET_IN

if TYPE_CHECKING:
    from simpletuner_fleet.client.table.job_answers import WholeJobView
from simpletuner_fleet.client.troubles import (
    CONFLICT,
    FAILED,
    JOB_FAILED,
    NOT_FOUND,
    TIMEOUT,
    UNREACHABLE,
    USAGE,
    Trouble,
    of_connection_error,
)


class ClientError(Exception):
    """The base of all errors of a client. `code` is what programs decide by; the words may change."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.what)
        self.trouble = trouble

    @property
    def code(self) -> str:
        return self.trouble.code

    @property
    def next(self) -> tuple[str, ...]:
        """Says what to do about it, the likeliest first."""
        return self.trouble.next

    def __str__(self) -> str:
        return f"{self.trouble.what}: {self.trouble.why} ({self.trouble.code})"


class UnreachableError(ClientError):
    """No orchestrator answered, or something else did in its place. Whether a request was carried out is not known."""


class ProblemError(ClientError):
    """The orchestrator said no, in an RFC 9457 problem."""

    exit_code = FAILED

    def __init__(self, status: int, problem: dict[str, Any]) -> None:
        self.status = status
        self.problem = problem
        """The whole document."""
        steps = (str(problem["next"]),) if problem.get("next") else ()
        title, detail = str(problem.get("title") or "Refused"), str(problem.get("detail") or "")
        super().__init__(Trouble(title, detail, steps, str(problem["code"]), self.exit_code))

    @property
    def errors(self) -> list[dict[str, Any]]:
        """Says which fields were not valid: each with `path` and `detail`."""
        listed = self.problem.get("errors")
        return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


class InvalidRequest(ProblemError):
    """What was asked for is not valid: 400, 413, 415, 422."""

    exit_code = USAGE


class NotLetIn(ProblemError):
    """The token is not known, or may not do this: 401, 403."""

    exit_code = NOT_LET_IN


class NoSuchThing(ProblemError):
    """There is nothing of this id or name: 404."""

    exit_code = NOT_FOUND


class NotNow(ProblemError):
    """The request is not possible as things are: 409."""

    exit_code = CONFLICT


class TooBusy(ProblemError):
    """The orchestrator cannot take the request now: 429, 503. The client has tried again already."""

    exit_code = UNREACHABLE


class WaitTimeout(ClientError):
    """What was waited for did not happen in time."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(Trouble(what, why, (), "E_TIMEOUT", TIMEOUT))


class JobFailed(ClientError):
    """The job that was waited for ended otherwise than completed."""

    def __init__(self, job: "WholeJobView", steps: Iterable[str]) -> None:
        self.job = job
        why = job.error or job.reason or job.status
        super().__init__(Trouble(f"{job.id} {job.status}", why, tuple(steps), "E_JOB_FAILED", JOB_FAILED))


PROBLEM_OF_STATUS: dict[int, type[ProblemError]] = {
    400: InvalidRequest,
    401: NotLetIn,
    403: NotLetIn,
    404: NoSuchThing,
    409: NotNow,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
    429: TooBusy,
    503: TooBusy,
}


def problem_error(status: int, problem: dict[str, Any]) -> ProblemError:
    return PROBLEM_OF_STATUS.get(status, ProblemError)(status, problem)


def unreachable(error: BaseException, url: str) -> UnreachableError:
    return UnreachableError(of_connection_error(error, url))


def fail(
    what: str, why: str, next_steps: str | Iterable[str], code: str, status: int = FAILED
) -> ClientError:
    steps = (next_steps,) if isinstance(next_steps, str) else tuple(next_steps)
    return ClientError(Trouble(what, why, steps, code, int(status)))


def usage(what: str, why: str, next_step: str) -> ClientError:
    return fail(what, why, next_step, "E_USAGE", USAGE)
