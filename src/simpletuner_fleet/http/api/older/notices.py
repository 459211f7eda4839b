"""Answers requests for notifications, health and figures as older guides write them."""

from typing import Any

import msgspec

from simpletuner_fleet.core.errors import AskedOtherwise
from simpletuner_fleet.core.notices.kinds import KINDS, NEEDED, OF_ONESELF
from simpletuner_fleet.http.api.notices import endpoints
from simpletuner_fleet.http.api.older.wording import Older, WordedRequest, Wording, on_behalf
from simpletuner_fleet.http.edge.bodies import as_type
from simpletuner_fleet.http.edge.routes import Answer, Call, Route

CHANNELS = "/api/cloud/notifications/channels"
CHANNEL = f"{CHANNELS}/{{id}}"
LIST = "GET /api/notifications"
MAIL = (
    "The server's mail server is set when it starts: --smtp-url and --smtp-from. Then everybody adds their own address: "
    'POST /api/notifications with {"channel": "email", "address": …, "events": […]}.'
)
OUR_SECRET = (
    "This server makes the secret that signs its messages, and the answer has it: leave webhook_secret out."
)
EVENTS_OF_ONE = (
    "Which events go where is said of each endpoint: PATCH /api/notifications/ID with events (GET /api/notifications/events "
    "names them), scope, quiet hours and digest."
)
HISTORY = "Each endpoint has its own: GET /api/notifications/ID/history."
METRICS = "Everything is at GET /metrics, always; a collector takes of it what it wants."


def of_its_own(call: Call[Any]) -> Wording:
    """Asks for everything that the caller may be told of: older channels had no choice of events."""
    said = dict(call.body or {})
    kind = said.pop("channel_type", None)
    if kind == "email":
        raise AskedOtherwise(next_step=MAIL)
    if said.pop("webhook_secret", None):
        raise AskedOtherwise(next_step=OUR_SECRET)
    may = call.principal.can
    events = [one for one in KINDS if all(map(may, NEEDED.get(one, (OF_ONESELF,))))]
    return {"channel": kind, "address": said.pop("webhook_url", None), "events": events, **said}


async def add_channel(call: Call[dict[str, Any]]) -> Answer:
    said = of_its_own(call)
    enabled = said.pop("is_enabled", True)
    made = await _ask(call, "POST", "/api/notifications", said)
    shown = older_channel(made["endpoint"], WordedRequest(path={}, body={}))
    if enabled is False:
        shown = await _paused(call, shown["id"], paused=True)
    return {**shown, "secret": made["secret"]}


async def change_channel(call: Call[dict[str, Any]]) -> Answer:
    said = dict(call.body or {})
    if any(name.startswith(("smtp_", "imap_")) for name in said):
        raise AskedOtherwise(next_step=MAIL)
    if said.pop("webhook_secret", None):
        raise AskedOtherwise(next_step=OUR_SECRET)
    enabled = said.pop("is_enabled", None)
    if "webhook_url" in said:
        said["address"] = said.pop("webhook_url")
    shown: Wording = {}
    if said or enabled is None:
        shown = older_channel(
            await _ask(call, "PATCH", endpoints.PATH, said, call.path["id"]), WordedRequest(path={}, body={})
        )
    return shown if enabled is None else await _paused(call, call.path["id"], paused=enabled is False)


async def _paused(call: Call[Any], id_: str, *, paused: bool) -> Wording:
    verb = "pause" if paused else "resume"
    return older_channel(
        await _ask(call, "POST", f"{endpoints.PATH}/{verb}", None, id_), WordedRequest(path={}, body={})
    )


async def _ask(call: Call[Any], method: str, path: str, said: Wording | None, id_: str = "") -> Wording:
    meant = _row(method, path)
    body = as_type(said, meant.body) if said is not None and meant.body else None
    asked = WordedRequest(path={"id": id_}, body={})
    plain: Wording = msgspec.to_builtins(await meant.handler(on_behalf(call, meant, body, asked)))
    return plain


def _row(method: str, path: str) -> Route:
    return next(row for row in endpoints.ROUTES if (row.method, row.path) == (method, path))


def older_channel(answer: Wording, asked: WordedRequest) -> Wording:
    return {
        **answer,
        "channel_type": answer["channel"],
        "is_enabled": answer["status"] != "paused",
        "webhook_url": answer["address"],
    }


def older_channels(answer: Wording, asked: WordedRequest) -> Wording:
    channels = [older_channel(one, asked) for one in answer["endpoints"]]
    return {"channels": channels, "total": len(channels)}


def tried(answer: Wording, asked: WordedRequest) -> Wording:
    failed = answer["state"] == "failed"
    return {
        **answer,
        "success": answer["state"] == "delivered",
        "error": answer["detail"] if failed else None,
    }


ROWS = [
    Older(asked=f"GET {CHANNELS}", means=LIST, answered=older_channels),
    Older(asked=f"POST {CHANNELS}", does=add_channel, permission=OF_ONESELF, status=201),
    Older(asked=f"GET {CHANNEL}", means="GET /api/notifications/{id}", answered=older_channel),
    Older(asked=f"PATCH {CHANNEL}", does=change_channel, permission=OF_ONESELF),
    Older(asked=f"DELETE {CHANNEL}", means="DELETE /api/notifications/{id}"),
    Older(asked=f"POST {CHANNEL}/test", means="POST /api/notifications/{id}/test", answered=tried),
    Older(asked="GET /api/cloud/notifications/events", means="GET /api/notifications/events"),
    Older(asked="GET /api/cloud/notifications/preferences", instead=EVENTS_OF_ONE),
    Older(asked="POST /api/cloud/notifications/preferences", instead=EVENTS_OF_ONE),
    Older(asked="GET /api/cloud/notifications/history", instead=HISTORY),
    Older(asked="GET /api/cloud/notifications/status", means=LIST, answered=older_channels),
    Older(asked="GET /api/webhooks", means=LIST, answered=older_channels),
    Older(asked="GET /api/cloud/health", means="GET /health/ready"),
    Older(asked="GET /api/cloud/health/live", means="GET /health/live"),
    Older(asked="GET /api/cloud/health/ready", means="GET /health/ready"),
    Older(asked="GET /api/cloud/metrics/prometheus", means="GET /metrics"),
    Older(asked="GET /api/metrics/prometheus", means="GET /metrics"),
    Older(asked="PUT /api/cloud/metrics/config", instead=METRICS),
]
