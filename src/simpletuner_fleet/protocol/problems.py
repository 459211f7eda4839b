"""Reads an orchestrator's refusals, so that no other answer is mistaken for one.

Proxies, captive portals, firewalls and load balancers answer too, with any status they like. What counts is a problem
(RFC 9457) whose `type` is ours, whose `code` is one that we know, and whose `status` is the answer's own.
"""

from typing import Any

import msgspec

from simpletuner_fleet.core import errors

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:simpletuner:problem:"
OF_THE_EDGE = frozenset(
    {
        "foreign_origin",
        "host_not_allowed",
        "internal_error",
        "method_not_allowed",
        "not_a_user",
        "not_your_job",
        "origin_missing",
        "other_worker",
        "page_of_another",
        "pattern_too_slow",
        "request_timeout",
        "search_unavailable",
        "secrets_key",
        "session_ended",
        "storage_unavailable",
    }
)
"""Codes of refusals that the server alone can raise."""


KNOWN_CODES = OF_THE_EDGE | {
    member.code
    for member in vars(errors).values()
    if isinstance(member, type) and issubclass(member, errors.FleetError)
}


class ReadProblem(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    detail: str
    next: str = ""


def read_problem(status: int, body: bytes) -> ReadProblem | None:
    """Returns None where the answer is not an orchestrator's: then it says nothing about what was asked."""
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    code = document.get("code")
    if not isinstance(code, str) or code not in KNOWN_CODES:
        return None
    if document.get("type") != TYPE_PREFIX + code or document.get("status") != status:
        return None
    return ReadProblem(
        code=code, detail=str(document.get("detail", "")), next=str(document.get("next") or "")
    )
