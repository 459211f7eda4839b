"""Defines what callers write and read of an endpoint."""

import re
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Count, Name, Path, Seconds
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.notices.endpoint import (
    Channel,
    DeliveryTry,
    Endpoint,
    NoticeRules,
    QuietHours,
)
from simpletuner_fleet.core.notices.timing import in_trouble
from simpletuner_fleet.http.edge.routes import rfc3339
from simpletuner_fleet.http.views.fields import Time, view_of

Events = Annotated[list[Name], Meta(max_length=50)]
CLOCK = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
LANGUAGES = Literal["", "en", "pt-BR", "hi", "zh-Hans", "ja"]


class EndpointBody(Struct, kw_only=True, forbid_unknown_fields=True):
    name: Name
    channel: Channel
    address: Path
    """A URL, or an e-mail address."""
    events: Events
    scope: Literal["own", "all"] = "own"
    quiet: Name = ""
    """Such as 22:00-07:00; empty: none."""
    digest: Literal["none", "hourly", "daily"] = "none"
    digest_at: Name = "09:00"
    zone: Name = "UTC"
    """The time zone in which hours are meant, by its IANA name."""
    language: LANGUAGES = ""


class EndpointChange(Struct, kw_only=True, forbid_unknown_fields=True):
    """Describes a change of an endpoint. What is left out stays as it is."""

    name: Name | UnsetType = UNSET
    address: Path | UnsetType = UNSET
    events: Events | UnsetType = UNSET
    scope: Literal["own", "all"] | UnsetType = UNSET
    quiet: Name | UnsetType = UNSET
    digest: Literal["none", "hourly", "daily"] | UnsetType = UNSET
    digest_at: Name | UnsetType = UNSET
    zone: Name | UnsetType = UNSET
    language: LANGUAGES | UnsetType = UNSET


class ReplayBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """Names the point from which to replay: an entry of the audit log, or a moment."""

    seq: Count | None = None
    since: Name | None = None


class RotateBody(Struct, kw_only=True, forbid_unknown_fields=True):
    overlap_s: Seconds = 86_400.0
    """For so long the secret before the new one signs as well."""


class EndpointView(Struct, kw_only=True):
    id: str
    owner: str
    owner_name: str
    name: str
    channel: str
    address: str
    """Without what is secret in it."""
    events: list[str]
    scope: str
    quiet: str
    digest: str
    digest_at: str
    zone: str
    language: str
    status: Literal["active", "failing", "paused"]
    in_trouble: bool
    """It has failed for so long that somebody should look."""
    error: str
    """Why the last try failed, or why it is paused."""
    failing_since: Time
    next_try_at: Time
    delivered_at: Time
    created_at: Time
    cursor: int
    """The number of the last entry of the audit log that is dealt with."""
    secrets: int
    """How many secrets sign its messages now."""


class MadeView(Struct, kw_only=True):
    endpoint: EndpointView
    secret: str
    """Shown this once; empty where nothing is signed."""


class EndpointsList(Struct):
    endpoints: list[EndpointView]


class DeliveryView(Struct, kw_only=True):
    message_id: str
    at: Time
    event: str
    first_seq: int
    last_seq: int
    ok: bool
    detail: str
    took_s: float


class HistoryView(Struct):
    deliveries: list[DeliveryView]


class TrialView(Struct, kw_only=True):
    state: Literal["delivered", "failed", "sending"]
    """`sending`: it takes long; the history will show what came of it."""
    detail: str = ""


class EventView(Struct, kw_only=True):
    event: str
    title: str


class EventsList(Struct):
    events: list[EventView]


def rules_of(body: EndpointBody) -> NoticeRules:
    return NoticeRules(
        events=tuple(dict.fromkeys(body.events)),
        scope=body.scope,
        quiet=read_quiet(body.quiet),
        digest=body.digest,
        digest_at=read_clock(body.digest_at, "$.digest_at"),
        zone=body.zone,
        language=body.language,
    )


def changed_rules(before: NoticeRules, change: EndpointChange) -> NoticeRules | None:
    """Returns the changed rules; None where none of them changes."""
    rules = before
    if change.events is not UNSET:
        rules = replace(rules, events=tuple(dict.fromkeys(change.events)))
    if change.quiet is not UNSET:
        rules = replace(rules, quiet=read_quiet(change.quiet))
    if change.digest_at is not UNSET:
        rules = replace(rules, digest_at=read_clock(change.digest_at, "$.digest_at"))
    if change.scope is not UNSET:
        rules = replace(rules, scope=change.scope)
    if change.digest is not UNSET:
        rules = replace(rules, digest=change.digest)
    if change.zone is not UNSET:
        rules = replace(rules, zone=change.zone)
    if change.language is not UNSET:
        rules = replace(rules, language=change.language)
    return rules if rules != before else None


def endpoint_view(endpoint: Endpoint, owner_name: str, now: float) -> EndpointView:
    rules, state = endpoint.rules, endpoint.state
    failing = state.failing_since is not None
    return view_of(
        EndpointView,
        endpoint,
        owner_name=owner_name,
        channel=str(endpoint.channel),
        address=endpoint.shown_address,
        events=list(rules.events),
        scope=rules.scope,
        quiet=quiet_text(rules.quiet),
        digest=rules.digest,
        digest_at=clock_text(rules.digest_at),
        zone=rules.zone,
        language=rules.language,
        status="paused" if endpoint.paused else "failing" if failing else "active",
        in_trouble=in_trouble(endpoint, now),
        error=endpoint.paused.why if endpoint.paused else state.error,
        failing_since=rfc3339(state.failing_since),
        next_try_at=rfc3339(state.not_before) if failing and not endpoint.paused else None,
        delivered_at=rfc3339(state.delivered_at),
        cursor=state.cursor,
        secrets=sum(key.until is None or now < key.until for key in endpoint.keys),
    )


def delivery_view(delivery: DeliveryTry) -> DeliveryView:
    return view_of(DeliveryView, delivery)


def read_quiet(text: str) -> QuietHours | None:
    if not text:
        return None
    start, _, end = text.partition("-")
    return QuietHours(start=read_clock(start.strip(), "$.quiet"), end=read_clock(end.strip(), "$.quiet"))


def read_clock(text: str, path: str) -> int:
    match = CLOCK.fullmatch(text)
    if match is None:
        raise Invalid("Expected a time of day such as 22:00, or quiet hours such as 22:00-07:00.", path=path)
    return int(match[1]) * 60 + int(match[2])


def quiet_text(quiet: QuietHours | None) -> str:
    return f"{clock_text(quiet.start)}-{clock_text(quiet.end)}" if quiet else ""


def clock_text(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
