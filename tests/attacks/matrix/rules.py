"""What is expected, by hand: who holds what, what each route asks for, and what it does to a job in each state."""

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import JobState

READING = frozenset(
    {"queue.read", "jobs.read", "configs.read", "data.read", "notifications.own", "machines.read"}
)
MEMBERS = READING | {
    *(
        "queue.submit",
        "queue.submit.command",
        "queue.cancel",
        "jobs.cancel",
        "jobs.retry",
        "jobs.edit",
        "configs.write",
        "secrets.read",
        "data.write",
    ),
}
STEERING = frozenset({"queue.cancel", "queue.priority", "queue.approve", "jobs.cancel", "jobs.retry"})
ADMINS = frozenset(
    {
        "admin.workers",
        "admin.scim",
        "admin.audit",
        "admin.tokens",
        "admin.users",
        "admin.limits",
        "secrets.write",
    }
    | {"admin.teams", "admin.see_all", "admin.notifications", "admin.machines"}
)
EVERYTHING = MEMBERS | STEERING | ADMINS
HOLDS: dict[str, frozenset[str]] = {
    "nobody": frozenset(),
    "a stranger": frozenset(),
    "an admin": EVERYTHING,
    "ann, its owner": frozenset(MEMBERS),
    "bob, a colleague": frozenset(MEMBERS),
    "vic, who looks on": READING,
    "a token that steers": STEERING | {"queue.submit.command"},
    "a token that reads": frozenset({"jobs.read", "queue.read"}),
    "a token with all else": frozenset(EVERYTHING) - STEERING - {"jobs.read", "queue.read"},
}
UNKNOWN = ("nobody", "a stranger")
OF_WORKERS = ("its worker", "another worker")
OF_ATTEMPTS = ("its own attempt", "attempt of another job")
CALLERS = (*HOLDS, *OF_WORKERS, *OF_ATTEMPTS)

GUARDS: dict[str, tuple[str, ...]] = {
    "worker": (
        "PUT /api/workers/job/check/objects/none",
        "GET /api/workers/job/check/objects/none/link",
        "POST /api/workers/register",
        "POST /api/workers/heartbeat",
        "POST /api/workers/job/{id}/accept",
        "POST /api/workers/disconnect",
        "POST /api/workers/trainer-options",
        "GET /api/workers/queue",
        "GET /api/workers/stream",
    ),
    "upload": (
        "POST /api/workers/job/{id}/status",
        "POST /api/workers/job/{id}/objects",
        "PUT /api/workers/job/{id}/objects/{sha256}",
        "GET /api/workers/job/{id}/objects/{sha256}",
        "GET /api/workers/job/{id}/objects/{sha256}/link",
        "POST /api/workers/job/{id}/objects/{sha256}/direct",
        "POST /api/workers/job/{id}/objects/{sha256}/direct/end",
        "POST /api/workers/job/{id}/manifests",
        "POST /api/workers/job/{id}/notes",
        "POST /api/workers/job/{id}/metrics",
        "POST /api/workers/job/{id}/gpu-metrics",
        "PUT /api/workers/job/{id}/logs",
        "POST /api/workers/job/{id}/logs",
        "GET /api/workers/job/{id}/data/{sha256}",
    ),
    "jobs.read": (
        "GET /api/jobs/{id}/metrics",
        "GET /api/jobs",
        "GET /api/compare",
        "GET /api/palette",
        "POST /api/matching/count",
        "GET /api/jobs/{id}",
        "GET /api/jobs/{id}/explain",
        "GET /api/jobs/{id}/outlook",
        "GET /api/jobs/{id}/attempts",
        "GET /api/jobs/{id}/events",
        "GET /api/jobs/{id}/logs",
        "GET /api/jobs/{id}/logs/search",
        "GET /api/jobs/{id}/artifacts",
        "GET /api/jobs/{id}/artifacts/{manifest_id}/files/{path}",
        "GET /api/jobs/{id}/artifacts/{manifest_id}/archive",
        "GET /api/jobs/{id}/publication",
        "GET /api/events",
        "GET /api/prices",
        "GET /api/usage",
        "GET /api/usage/export",
        "GET /api/budgets",
    ),
    "queue.submit": ("POST /api/queue/submit",),
    "queue.read": (
        "GET /api/queue",
        "GET /api/queue/stats",
        "GET /api/queue/me",
        "GET /api/queue/position/{id}",
        "GET /api/queue/concurrency",
        "GET /api/approvals",
        "GET /api/approvals/requests",
        "GET /api/approvals/me",
        "GET /api/approvals/pending/count",
        "GET /api/approvals/{id}",
    ),
    "queue.cancel": ("POST /api/queue/{id}/cancel",),
    "queue.priority": ("POST /api/queue/{id}/priority", "POST /api/matching/priority"),
    "queue.approve": (
        "POST /api/queue/{id}/approve",
        "POST /api/queue/{id}/reject",
    ),
    "admin.limits": (
        "POST /api/queue/concurrency",
        "GET /api/quotas",
        "POST /api/quotas",
        "PATCH /api/quotas/{id}",
        "DELETE /api/quotas/{id}",
        "POST /api/prices",
        "DELETE /api/prices/{id}",
        "PUT /api/prices/currency",
        "GET /api/prices/idle",
        "GET /api/approvals/rules",
        "POST /api/approvals/rules",
        "PUT /api/approvals/rules/{rule}",
        "DELETE /api/approvals/rules/{rule}",
    ),
    "jobs.cancel": (
        "POST /api/jobs/{id}/cancel",
        "POST /api/jobs/{id}/checkpoint",
        "POST /api/jobs/{id}/validate",
        "POST /api/matching/cancel",
        "POST /api/matching/delete",
        "DELETE /api/jobs/{id}",
    ),
    "jobs.edit": (
        "POST /api/jobs/{id}/tags",
        "PUT /api/jobs/{id}/note",
        "PATCH /api/jobs/{id}",
        "PUT /api/jobs/{id}/artifacts/{manifest_id}/pin",
        "DELETE /api/jobs/{id}/artifacts/{manifest_id}/pin",
        "POST /api/matching/tags",
    ),
    "jobs.retry": (
        "POST /api/matching/retry",
        "POST /api/jobs/{id}/retry",
        "POST /api/jobs/{id}/publish",
    ),
    "configs.read": (
        "GET /api/configs",
        "GET /api/configs/{name}",
        "GET /api/configs/{name}/versions",
        "GET /api/configs/{name}/diff",
        "POST /api/config-check",
    ),
    "configs.write": (
        "PUT /api/configs/{name}",
        "DELETE /api/configs/{name}",
    ),
    "data.write": (
        "POST /api/data/objects",
        "PUT /api/data/objects/{sha256}",
        "POST /api/data",
        "DELETE /api/data/{id}",
    ),
    "data.read": (
        "GET /api/data",
        "GET /api/data/{id}",
        "GET /api/data/{id}/objects/{sha256}",
    ),
    "secrets.read": ("GET /api/secrets",),
    "notifications.own": (
        *("GET /api/notifications", "POST /api/notifications", "GET /api/notifications/events"),
        *(f"{method} /api/notifications/{{id}}" for method in ("GET", "PATCH", "DELETE")),
        *(
            f"POST /api/notifications/{{id}}/{verb}"
            for verb in ("test", "pause", "resume", "replay", "secret")
        ),
        "GET /api/notifications/{id}/history",
    ),
    "secrets.write": (
        "PUT /api/secrets/{name}",
        "DELETE /api/secrets/{name}",
    ),
    "admin.workers": (
        "GET /api/admin/workers",
        "GET /api/admin/pulses",
        "POST /api/admin/workers",
        "GET /api/admin/workers/{id}",
        "PATCH /api/admin/workers/{id}",
        "DELETE /api/admin/workers/{id}",
        "POST /api/admin/workers/{id}/drain",
        "POST /api/admin/workers/{id}/resume",
        "POST /api/admin/workers/{id}/token",
    ),
    "any_user": (
        "GET /api/whoami",
        "POST /api/logout",
        "GET /api/me",
        "PATCH /api/me",
        "POST /api/login/terminals/answer",
        "GET /api/me/views",
        "PUT /api/me/views/{name}",
        "DELETE /api/me/views/{name}",
        "GET /api/me/sessions",
        "DELETE /api/me/sessions/{id}",
        "GET /api/me/tokens",
        "POST /api/me/tokens",
        "DELETE /api/me/tokens/{id}",
        "GET /api/quotas/me",
        "POST /api/approvals/{id}/approve",
        "POST /api/approvals/{id}/reject",
        "GET /api/teams",
        "GET /api/teams/{id}",
        "PATCH /api/teams/{id}",
        "PUT /api/teams/{id}/members/{user}",
        "DELETE /api/teams/{id}/members/{user}",
    ),
    "admin.teams": (
        "POST /api/teams",
        "DELETE /api/teams/{id}",
    ),
    "admin.tokens": (
        "GET /api/admin/tokens",
        "POST /api/admin/tokens",
        "DELETE /api/admin/tokens/{id}",
    ),
    "machines.read": (
        "GET /api/pools",
        "GET /api/pools/{name}",
        "GET /api/machines",
        "GET /api/machines/{id}",
    ),
    "admin.machines": (
        "PUT /api/pools/{name}",
        "DELETE /api/pools/{name}",
        "POST /api/pools/take-in-hand",
        "GET /api/pools/{name}/offers",
        "POST /api/pools/offers",
        "POST /api/pools/{name}/check",
        "POST /api/machines/{id}/end",
    ),
    "public": (
        "POST /api/workers/join",
        "POST /api/login",
        "GET /api/login/providers",
        "POST /api/login/terminals",
        "POST /api/login/ci/{issuer}",
        "POST /api/login/terminals/claim",
        "POST /api/login/terminals/exchange",
        "POST /api/login/providers/{provider}/logout",
        "GET /api/approvals/link",
        "POST /api/approvals/link",
        "GET /api/start",
        "POST /api/start",
        "GET /health/live",
        "GET /health/ready",
        "GET /metrics",
    ),
    "admin.users": (
        "GET /api/admin/sign-in/providers",
        "POST /api/admin/sign-in/providers",
        "GET /api/admin/sign-in/providers/{provider}",
        "PATCH /api/admin/sign-in/providers/{provider}",
        "DELETE /api/admin/sign-in/providers/{provider}",
        "POST /api/admin/sign-in/providers/{provider}/test",
        "GET /api/admin/roles",
        "PUT /api/admin/roles/{name}",
        "DELETE /api/admin/roles/{name}",
        "GET /api/admin/users",
        "POST /api/admin/users",
        "POST /api/admin/users/link",
        "PATCH /api/admin/users/{id}",
        "DELETE /api/admin/users/{id}",
        "POST /api/admin/users/{id}/link",
    ),
    "admin.scim": (
        *("GET /scim/v2/Users", "POST /scim/v2/Users", "GET /scim/v2/Groups", "POST /scim/v2/Groups"),
        *(f"{method} /scim/v2/Users/{{id}}" for method in ("GET", "PUT", "PATCH", "DELETE")),
        *(f"{method} /scim/v2/Groups/{{id}}" for method in ("GET", "PUT", "PATCH", "DELETE")),
        *("GET /scim/v2/ServiceProviderConfig", "GET /scim/v2/ResourceTypes", "GET /scim/v2/Schemas"),
        *("GET /scim/v2/ResourceTypes/{name}", "GET /scim/v2/Schemas/{name}"),
    ),
    "admin.audit": (
        "GET /api/audit",
        "GET /api/audit/export",
        "GET /api/audit/stats",
        "GET /api/audit/types",
        "GET /api/audit/verify",
    ),
}
"""Which permission each route asks for; `worker` and `upload` are no permissions but kinds of tokens."""


class Rule(Struct, frozen=True):
    """The answers by state of the job, in the order of `JobState`: to whom the route is for, and to its own attempt."""

    by_state: tuple[int, ...]
    own_only: bool = False
    """A member does it to their own jobs alone."""
    by_approvers: bool = False
    """While it waits for an approval, only who may approve every job does it; the route itself asks for no permission."""
    as_approved: bool = False
    """Once it was approved, only who may approve every job does it."""
    attempt: tuple[int, ...] = ()
    """Empty: an attempt's token does not open it."""

    def answer(self, state: JobState, *, attempt: bool = False) -> int:
        return (self.attempt if attempt else self.by_state)[list(JobState).index(state)]


#               blocked queued dispatched running cancelling completed failed cancelled
ALWAYS = Rule((200, 200, 200, 200, 200, 200, 200, 200))
NEVER_MADE = Rule((404, 404, 404, 404, 404, 404, 404, 404))
ONCE_STORED = Rule((404, 404, 404, 404, 404, 200, 404, 404))
UNTIL_THE_END = Rule((200, 200, 200, 200, 200, 409, 409, 409))
OWN_UNTIL_THE_END = Rule((200, 200, 200, 200, 200, 409, 409, 409), own_only=True)
OWN_WHILE_IT_TRAINS = Rule((409, 409, 409, 200, 409, 409, 409, 409), own_only=True)
OWN_ALWAYS = Rule((200, 200, 200, 200, 200, 200, 200, 200), own_only=True)
OWN_UNTIL_APPROVED = Rule((200, 200, 409, 409, 409, 409, 409, 409), own_only=True, as_approved=True)
OWN_ONCE_STORED = Rule((404, 404, 404, 404, 404, 200, 404, 404), own_only=True)
OWN_AFTER_THE_END = Rule((409, 409, 409, 409, 409, 200, 200, 200), own_only=True)
OWN_ONCE_COMPLETED = Rule((409, 409, 409, 409, 409, 200, 409, 409), own_only=True)
DECIDED_BY_APPROVERS = Rule((200, 409, 409, 409, 409, 409, 409, 409), by_approvers=True)
WHILE_UNAPPROVED = Rule((200, 409, 409, 409, 409, 409, 409, 409))
# Of workers. A token of an attempt that never was is none; the worker may bring what was left behind at the end.
ACCEPTS = Rule((409, 409, 200, 200, 200, 409, 409, 409))
REPORTS = Rule((409, 409, 200, 200, 200, 409, 200, 409), attempt=(401, 401, 200, 200, 200, 409, 200, 409))
WRITES = Rule((409, 409, 200, 200, 200, 200, 200, 200), attempt=(401, 401, 200, 200, 200, 409, 409, 409))
NAMES_WHAT_IS_STORED = Rule(
    (409, 409, 409, 409, 409, 200, 409, 409), attempt=(401, 401, 409, 409, 409, 409, 409, 409)
)
FETCHES_NOTHING = Rule(
    (409, 409, 404, 404, 404, 409, 409, 409), attempt=(401, 401, 404, 404, 404, 409, 409, 409)
)

RULES: dict[str, Rule] = {
    "GET /api/jobs/{id}": ALWAYS,
    "GET /api/jobs/{id}/explain": ALWAYS,
    "GET /api/jobs/{id}/outlook": ALWAYS,
    "GET /api/jobs/{id}/attempts": ALWAYS,
    "GET /api/jobs/{id}/events": ALWAYS,
    "GET /api/jobs/{id}/logs": ALWAYS,
    "GET /api/jobs/{id}/logs/search": ALWAYS,
    "GET /api/jobs/{id}/metrics": ALWAYS,
    "GET /api/jobs/{id}/artifacts": ALWAYS,
    "GET /api/jobs/{id}/artifacts/{manifest_id}/files/{path}": ONCE_STORED,
    "GET /api/jobs/{id}/artifacts/{manifest_id}/archive": ONCE_STORED,
    "GET /api/jobs/{id}/publication": NEVER_MADE,
    "GET /api/queue/position/{id}": ALWAYS,
    "POST /api/jobs/{id}/cancel": OWN_UNTIL_THE_END,
    "POST /api/queue/{id}/cancel": OWN_UNTIL_THE_END,
    "POST /api/jobs/{id}/checkpoint": OWN_WHILE_IT_TRAINS,
    "POST /api/jobs/{id}/validate": OWN_WHILE_IT_TRAINS,
    "POST /api/jobs/{id}/retry": OWN_AFTER_THE_END,
    "DELETE /api/jobs/{id}": OWN_AFTER_THE_END,
    "POST /api/jobs/{id}/tags": OWN_ALWAYS,
    "PUT /api/jobs/{id}/note": OWN_ALWAYS,
    "PATCH /api/jobs/{id}": OWN_UNTIL_APPROVED,
    "PUT /api/jobs/{id}/artifacts/{manifest_id}/pin": OWN_ONCE_STORED,
    "DELETE /api/jobs/{id}/artifacts/{manifest_id}/pin": OWN_ONCE_STORED,
    "POST /api/jobs/{id}/publish": OWN_ONCE_COMPLETED,
    "POST /api/queue/{id}/priority": UNTIL_THE_END,
    "POST /api/queue/{id}/approve": WHILE_UNAPPROVED,
    "POST /api/queue/{id}/reject": WHILE_UNAPPROVED,
    "GET /api/approvals/{id}": ALWAYS,
    "POST /api/approvals/{id}/approve": DECIDED_BY_APPROVERS,
    "POST /api/approvals/{id}/reject": DECIDED_BY_APPROVERS,
    "POST /api/workers/job/{id}/accept": ACCEPTS,
    "POST /api/workers/job/{id}/status": REPORTS,
    "POST /api/workers/job/{id}/objects": WRITES,
    "PUT /api/workers/job/{id}/objects/{sha256}": WRITES,
    "GET /api/workers/job/{id}/objects/{sha256}": FETCHES_NOTHING,
    "GET /api/workers/job/{id}/objects/{sha256}/link": FETCHES_NOTHING,
    "POST /api/workers/job/{id}/objects/{sha256}/direct": NAMES_WHAT_IS_STORED,
    "POST /api/workers/job/{id}/objects/{sha256}/direct/end": NAMES_WHAT_IS_STORED,
    "GET /api/workers/job/{id}/data/{sha256}": FETCHES_NOTHING,
    "POST /api/workers/job/{id}/manifests": NAMES_WHAT_IS_STORED,
    "POST /api/workers/job/{id}/notes": WRITES,
    "POST /api/workers/job/{id}/metrics": WRITES,
    "POST /api/workers/job/{id}/gpu-metrics": WRITES,
    "PUT /api/workers/job/{id}/logs": WRITES,
    "POST /api/workers/job/{id}/logs": WRITES,
}
"""Every route that is about one job."""
OWNED = {
    "PUT /api/configs/{name}": 403,
    "DELETE /api/configs/{name}": 403,
    "DELETE /api/data/{id}": 403,
    "DELETE /api/me/sessions/{id}": 404,
}
"""Every route that changes a thing which belongs to somebody, and what a colleague is answered."""
ENDPOINTS = tuple(route for route in GUARDS["notifications.own"] if "{" in route)
"""Another's endpoint is as unknown as one that is not there: `tests/http/api/test_notifications_api.py`."""
NOBODYS = (
    *("POST /api/login/providers/{provider}/logout", "POST /api/login/ci/{issuer}"),
    *("GET /api/configs/{name}", "GET /api/configs/{name}/versions", "GET /api/configs/{name}/diff"),
    *("PUT /api/me/views/{name}", "DELETE /api/me/views/{name}"),
    *("GET /api/data/{id}", "GET /api/data/{id}/objects/{sha256}", "PUT /api/data/objects/{sha256}"),
    *("PUT /api/secrets/{name}", "DELETE /api/secrets/{name}", "DELETE /api/admin/tokens/{id}"),
    *("GET /api/admin/workers/{id}", "PATCH /api/admin/workers/{id}", "DELETE /api/admin/workers/{id}"),
    *("POST /api/admin/workers/{id}/drain", "POST /api/admin/workers/{id}/resume"),
    *("POST /api/admin/workers/{id}/token", "PATCH /api/admin/users/{id}", "DELETE /api/admin/users/{id}"),
    *("POST /api/admin/users/{id}/link", "PUT /api/admin/roles/{name}", "DELETE /api/admin/roles/{name}"),
    *("GET /api/pools/{name}", "PUT /api/pools/{name}", "DELETE /api/pools/{name}"),
    *(
        "GET /api/pools/{name}/offers",
        "POST /api/pools/{name}/check",
        "GET /api/machines/{id}",
        "POST /api/machines/{id}/end",
    ),
    *("GET /api/teams/{id}", "PATCH /api/teams/{id}", "DELETE /api/teams/{id}"),
    *("PUT /api/teams/{id}/members/{user}", "DELETE /api/teams/{id}/members/{user}"),
    *("DELETE /api/me/tokens/{id}", "PATCH /api/quotas/{id}", "DELETE /api/quotas/{id}"),
    *("PUT /api/approvals/rules/{rule}", "DELETE /api/approvals/rules/{rule}", "DELETE /api/prices/{id}"),
    *(route for route in GUARDS["admin.scim"] if "{" in route),
    *(route for route in GUARDS["admin.users"] if "/sign-in/" in route and "{" in route),
)
"""Routes with a name in them for which it does not matter whose the thing is: the permission alone decides."""


ADMINS_ALONE = (
    "PATCH /api/admin/sign-in/providers/{provider}",
    "DELETE /api/admin/sign-in/providers/{provider}",
)
"""They say who is an admin: whoever has less than everything has not enough."""
METRICS = "GET /metrics"
"""It is for whoever has an API token, and for programs of this very machine that show nothing."""


def expected(route: str, caller: str, state: JobState | None) -> int | None:
    """The status that this caller is answered, or None where any but 401 and 403 will do."""
    asked = next(permission for permission, routes in GUARDS.items() if route in routes)
    rule = RULES.get(route)
    if asked in ("worker", "upload"):
        return _of_workers(asked, rule, caller, state)
    if route == METRICS:
        return None if caller == "nobody" or caller == "an admin" or caller.startswith("a token") else 401
    if asked == "public":
        return None
    if caller not in HOLDS or caller in UNKNOWN:
        return 401
    if (asked != "any_user" and asked not in HOLDS[caller]) or (
        route in ADMINS_ALONE and caller != "an admin"
    ):
        return 403
    if rule is None or state is None:
        return None
    if rule.own_only and caller == "bob, a colleague":
        return 403
    if rule.by_approvers and state is JobState.BLOCKED and "queue.approve" not in HOLDS[caller]:
        return 403
    if rule.as_approved and state is JobState.QUEUED and "queue.approve" not in HOLDS[caller]:
        return 409
    return rule.answer(state)


def _of_workers(asked: str, rule: Rule | None, caller: str, state: JobState | None) -> int | None:
    if caller in HOLDS or (asked == "worker" and caller in OF_ATTEMPTS):
        return 401
    if rule is None or state is None:
        return None
    if caller in ("another worker", "attempt of another job"):
        return 409
    return rule.answer(state, attempt=caller == "its own attempt")
