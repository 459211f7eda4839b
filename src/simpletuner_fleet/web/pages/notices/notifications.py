"""Shows where the user is notified of what and how deliveries go; to administrators, everybody's endpoints."""

from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.core.notices.endpoint import FOR_LOGS, FOR_PROGRAMS, Channel
from simpletuner_fleet.core.notices.kinds import AUDIT, KINDS, NEEDED, OF_EVERYBODY, OF_ONESELF, SEES_ALL
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.notices.bodies import delivery_view
from simpletuner_fleet.http.api.notices.endpoints import endpoint_caller, views_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import LANGUAGES, N_
from simpletuner_fleet.orchestrator.notices import endpoints
from simpletuner_fleet.web.frame.page import page

CHANNELS = {
    Channel.EMAIL: (N_("E-mail"), "anna@example.org"),
    Channel.SLACK: ("Slack", "https://hooks.slack.com/services/…"),
    Channel.DISCORD: ("Discord", "https://discord.com/api/webhooks/…"),
    Channel.TEAMS: ("Microsoft Teams", "https://….logic.azure.com/workflows/…"),
    Channel.NTFY: ("ntfy", "https://ntfy.sh/…"),
    Channel.APPRISE: (N_("Another service, through Apprise"), "tgram://BOT_TOKEN/CHAT_ID"),
    Channel.WEBHOOK: (N_("Webhook"), "https://example.org/hook"),
    Channel.SYSLOG: ("syslog", "tls://siem.example.org:6514"),
}
EVENT_NAMES = {**KINDS, AUDIT: N_("Every entry of the audit log"), "test": N_("Test message")}
SENT_NAMES = {**EVENT_NAMES, "digest": N_("Digest"), "audit.entries": N_("Audit entries")}


class NotificationsQuery(Struct, kw_only=True):
    endpoint: Name = ""
    """The one to look at; empty: all of them."""


class ChannelChoice(Struct, frozen=True, kw_only=True):
    value: str
    title: str
    example: str
    for_people: bool
    takes_log: bool


async def notifications(call: Call[None]) -> Reply:
    deps, who = deps_of(call), endpoint_caller(call)
    sender = deps.deliverer.sender if deps.deliverer else None
    has_mail, has_apprise = bool(sender and sender.has_mail), bool(sender and sender.apprise)
    may_log = all(map(call.principal.can, NEEDED[AUDIT]))
    possible = {Channel.EMAIL: has_mail, Channel.SYSLOG: may_log, Channel.APPRISE: has_apprise}
    common: dict[str, Any] = {
        "channels": [
            ChannelChoice(
                value=channel,
                title=title,
                example=example,
                for_people=channel not in FOR_PROGRAMS,
                takes_log=channel in FOR_LOGS,
            )
            for channel, (title, example) in CHANNELS.items()
            if possible.get(channel, True)
        ],
        "events": [
            (name, title)
            for name, title in KINDS.items()
            if all(map(call.principal.can, NEEDED.get(name, (OF_ONESELF,))))
        ],
        "event_names": SENT_NAMES,
        "channel_names": {str(channel): title for channel, (title, _) in CHANNELS.items()},
        "may_all": all(map(call.principal.can, (OF_EVERYBODY, SEES_ALL))),
        "may_log": may_log,
        "has_mail": has_mail,
        "has_apprise": has_apprise,
        "tongues": LANGUAGES,
        "audit": AUDIT,
    }
    if call.query.endpoint:
        known = await endpoints.endpoint_of(deps.fleet, call.query.endpoint, who)
        history = await endpoints.history_of(deps.fleet, known.id, who)
        [one] = await views_of(call, [known])
        sent = [delivery_view(row) for row in history]
        return page(call, "notices/endpoint.html", one=one, history=sent, **common)
    rows = await views_of(call, await endpoints.list_endpoints(deps.fleet, who))
    mine = [row for row in rows if row.owner == call.principal.owns_as]
    others = [row for row in rows if row.owner != call.principal.owns_as]
    return page(call, "notices/notifications.html", mine=mine, others=others, **common)


ROUTES = (
    Route(
        "GET",
        "/notifications",
        notifications,
        OF_ONESELF,
        summary="Notifications",
        query=NotificationsQuery,
    ),
)
