"""Describes a notification endpoint: its channel, what is sent there, and how far the log has been sent."""

from enum import StrEnum
from typing import Literal

from msgspec import Struct


class Channel(StrEnum):
    WEBHOOK = "webhook"
    EMAIL = "email"
    SLACK = "slack"
    DISCORD = "discord"
    TEAMS = "teams"
    NTFY = "ntfy"
    SYSLOG = "syslog"
    APPRISE = "apprise"
    """Any of the services in `notices.services`, by its Apprise address; an extra of the server."""


FOR_PROGRAMS = frozenset({Channel.WEBHOOK, Channel.SYSLOG})
"""They get every event by itself and at once; quiet hours and digests are for people."""
FOR_LOGS = frozenset({Channel.WEBHOOK, Channel.SYSLOG})
"""They can take the audit log."""

Scope = Literal["own", "all"]
Digest = Literal["none", "hourly", "daily"]


class QuietHours(Struct, frozen=True, kw_only=True):
    """Sets the hours of the day in which messages are held back.

    They last from one minute of the day to another, over midnight where the end comes first.
    """

    start: int
    end: int


class NoticeRules(Struct, frozen=True, kw_only=True):
    """Holds what an endpoint's owner chose: which events are sent there, when, and in which language."""

    events: tuple[str, ...]
    scope: Scope = "own"
    """`all`: everybody's jobs, for those who administer."""
    quiet: QuietHours | None = None
    digest: Digest = "none"
    digest_at: int = 9 * 60
    """The minute of the day at which a daily digest is sent."""
    zone: str = "UTC"
    """The IANA name of the time zone in which hours are meant."""
    language: str = ""
    """Empty: its owner's."""


class SigningKey(Struct, frozen=True, kw_only=True):
    """Holds one secret with which a webhook is signed; two are valid while one replaces the other."""

    sealed: str
    number: int
    created_at: float
    until: float | None = None


class DeliveryState(Struct, frozen=True, kw_only=True):
    """Tracks how far the log has been sent to an endpoint, and whether sending fails."""

    cursor: int
    """The number of the last entry of the log that is dealt with."""
    upto: int = 0
    """The last entry of the message that is being sent, where it tells of several; 0: none is."""
    tries: int = 0
    failing_since: float | None = None
    not_before: float = 0.0
    error: str = ""
    delivered_at: float | None = None


class EndpointPause(Struct, frozen=True, kw_only=True):
    at: float
    why: str
    by: str = ""
    """The id of who paused it; empty: it has failed for too long."""


class Endpoint(Struct, frozen=True, kw_only=True):
    id: str
    owner: str
    name: str
    channel: Channel
    sealed_address: str
    shown_address: str
    """The address without what is secret in it."""
    rules: NoticeRules
    state: DeliveryState
    created_at: float
    keys: tuple[SigningKey, ...] = ()
    turn: int = 0
    """Rises with every change that a person makes: what was being sent meanwhile is not noted."""
    paused: EndpointPause | None = None


class DeliveryTry(Struct, frozen=True, kw_only=True):
    """Records one try to send one message, for the endpoint's history."""

    endpoint_id: str
    number: int
    """Counts the tries of an endpoint."""
    message_id: str
    at: float
    event: str
    first_seq: int
    last_seq: int
    ok: bool
    detail: str
    took_s: float
