"""Converts problems to SCIM's own form (RFC 7644, 3.12), for SCIM clients."""

import msgspec

from simpletuner_fleet.http.edge.problems import ProblemAnswer

PATHS = "/scim/"
CONTENT_TYPE = "application/scim+json"
ERROR_SCHEMA = "urn:ietf:params:scim:api:messages:2.0:Error"
SCIM_TYPES = {"name_taken": "uniqueness", "malformed": "invalidSyntax", "invalid": "invalidValue"}


class _Problem(msgspec.Struct):
    detail: str = ""
    code: str = ""
    next: str = ""
    scim_type: str = ""


def in_scims_words(problem: ProblemAnswer) -> ProblemAnswer:
    """Returns the problem in SCIM's form. Our 422 is SCIM's 400."""
    read = msgspec.json.decode(problem.body, type=_Problem)
    status = 400 if problem.status == 422 else problem.status
    kind = read.scim_type or SCIM_TYPES.get(read.code, "")
    document = {
        "schemas": [ERROR_SCHEMA],
        "status": str(status),
        **({"scimType": kind} if kind else {}),
        "detail": f"{read.detail} {read.next}".strip(),
    }
    return ProblemAnswer(status, msgspec.json.encode(document), problem.headers)
