"""Turns errors into RFC 9457 problems: one table says which class becomes which status."""

import errno
import logging
import math
import secrets
from http import HTTPStatus
from typing import Any

import msgspec

from simpletuner_fleet.core import errors
from simpletuner_fleet.ports import ConcurrentChange
from simpletuner_fleet.protocol.problems import TYPE_PREFIX

log = logging.getLogger(__name__)

STORE_RETRY_AFTER_S = 2
LEADER_RETRY_AFTER_S = 1


class MethodNotAllowed(errors.FleetError):
    """This path does not support the method."""

    code = "method_not_allowed"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__(f"This path supports only {', '.join(allowed)}.", allowed=list(allowed))


class RequestTimeout(errors.FleetError):
    """The request did not arrive in time."""

    code = "request_timeout"


class HostNotAllowed(errors.FleetError):
    """The server does not accept this host name."""

    code = "host_not_allowed"
    next_step = "Start the server with '--allowed-host NAME', or use the machine's own name or address."


class ForeignOrigin(errors.FleetError):
    """Pages of other sites may not change anything here."""

    code = "foreign_origin"


class OriginMissing(ForeignOrigin):
    """A change made with a session cookie must come from a page of this server."""

    code = "origin_missing"
    next_step = "Programs use an API token: 'Authorization: Bearer st_…'."


class PageOfAnother(errors.Conflict):
    """This page was opened by another user."""

    code = "page_of_another"
    next_step = "To keep what is on it, log in again as the user who opened it; else reload the page."


STATUS: dict[type[Exception], int] = {
    errors.Malformed: 400,
    errors.ScimRefused: 400,
    errors.Unauthenticated: 401,
    errors.InvalidToken: 401,
    errors.Forbidden: 403,
    errors.NetworkNotAllowed: 403,
    errors.NotYours: 403,
    errors.SignInFailed: 403,
    errors.NotForTeam: 403,
    errors.NotInTeam: 403,
    errors.MayNotApprove: 403,
    errors.QuotaReached: 409,
    ForeignOrigin: 403,
    errors.NotFound: 404,
    MethodNotAllowed: 405,
    RequestTimeout: 408,
    errors.Conflict: 409,
    errors.AskedOtherwise: 410,
    errors.JobDeleted: 410,
    ConcurrentChange: 409,
    errors.TooLarge: 413,
    errors.UnsupportedMediaType: 415,
    HostNotAllowed: 421,
    errors.Invalid: 422,
    errors.TooManyRequests: 429,
    errors.ProviderUnusable: 502,
    errors.ProviderUnavailable: 502,
    errors.StoreUnavailable: 503,
}


class ProblemAnswer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


class ProblemDocument(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Holds an RFC 9457 problem. `code` is stable; `next` says what to do; `errors` names the fields."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    next: str | None = None
    errors: list[dict[str, str]] | None = None
    incident: str | None = None


RESERVED = frozenset(ProblemDocument.__struct_fields__) - {"errors"}


def status_of(kind: type[BaseException]) -> int:
    """Returns the status of the most specific class that the table names; any other error is a defect of ours."""
    return next((STATUS[base] for base in kind.__mro__ if base in STATUS), 500)


def problem_of(error: Exception) -> ProblemAnswer:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        error = errors.StorageLow("The server's disk is full.")
    status = status_of(type(error))
    if status == 500:
        return _incident(error)
    if not isinstance(error, errors.FleetError):
        error = errors.Conflict("Someone else changed this at the same time.", next_step="Try again.")
    return ProblemAnswer(status, _body(error, status), _headers(error))


def _incident(error: Exception) -> ProblemAnswer:
    """Logs the error under a number, and returns a problem that tells the user only that number."""
    incident = secrets.token_hex(4)
    log.error("incident %s: %s", incident, type(error).__name__, exc_info=error)
    document = ProblemDocument(
        type=f"{TYPE_PREFIX}internal_error",
        title="The server failed to answer.",
        status=500,
        detail=f"The server met a defect of its own. Its log has the story under incident {incident}.",
        code="internal_error",
        next=f"Look for 'incident {incident}' in the server's log and report it.",
        incident=incident,
    )
    return ProblemAnswer(500, msgspec.json.encode(document))


def _body(error: errors.FleetError, status: int) -> bytes:
    members: dict[str, Any] = {
        "type": TYPE_PREFIX + error.code,
        "title": (type(error).__doc__ or HTTPStatus(status).phrase).strip(),
        "status": status,
        "detail": error.detail,
        "code": error.code,
    }
    if error.next:
        members["next"] = error.next
    members |= {name: value for name, value in error.params.items() if name not in RESERVED}
    return msgspec.json.encode(members)


def _headers(error: errors.FleetError) -> tuple[tuple[bytes, bytes], ...]:
    match error:
        case errors.InvalidToken():
            return ((b"www-authenticate", b'Bearer realm="simpletuner", error="invalid_token"'),)
        case errors.Unauthenticated():
            return ((b"www-authenticate", b'Bearer realm="simpletuner"'),)
        case MethodNotAllowed():
            return ((b"allow", ", ".join(error.params["allowed"]).encode()),)
        case errors.TooManyRequests():
            return ((b"retry-after", b"%d" % max(1, math.ceil(error.params["retry_after_s"]))),)
        case errors.NotLeader():
            return ((b"retry-after", b"%d" % LEADER_RETRY_AFTER_S),)
        case errors.StoreUnavailable():
            return ((b"retry-after", b"%d" % STORE_RETRY_AFTER_S),)
        case errors.TooLarge() | RequestTimeout():
            return ((b"connection", b"close"),)
    return ()
