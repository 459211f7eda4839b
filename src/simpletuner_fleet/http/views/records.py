"""Defines the JSON form of API tokens, configs and audit entries."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from simpletuner_fleet.core.audit import AuditEntry
from simpletuner_fleet.http.views.fields import Time, view_of
from simpletuner_fleet.ports import ApiToken, ConfigVersion


class TokenView(Struct, kw_only=True):
    id: str
    name: str
    permissions: list[str]
    created_at: Time
    expires_at: Time
    revoked_at: Time
    last_used_at: Time
    """The time is true to the hour; null means never."""
    owner: str
    """The id of the user that it acts for, and never beyond; empty where there is none."""
    token: str | UnsetType = UNSET
    """The secret is only in the answer that made it."""


class TokensView(Struct):
    tokens: list[TokenView]


class ConfigView(Struct, kw_only=True):
    name: str
    version: int
    created_at: Time
    created_by: str
    owner: str
    """The id of who may save further versions; empty: administrators alone."""
    team: str = ""
    visibility: str = "everybody"
    changed: bool | UnsetType = UNSET


class ConfigsView(Struct):
    configs: list[ConfigView]


class VersionsView(Struct):
    versions: list[ConfigView]


class AuditEntryView(Struct, kw_only=True):
    id: int
    at: Time
    event_type: str
    actor: str
    actor_id: str
    ip: str
    target_type: str
    target_id: str
    details: dict[str, Any]
    hash: str


def token_view(token: ApiToken, secret: str | UnsetType = UNSET) -> TokenView:
    return view_of(TokenView, token, token=secret)


def config_view(config: ConfigVersion, changed: bool | UnsetType = UNSET) -> ConfigView:
    return view_of(ConfigView, config, changed=changed)


def audit_view(entry: AuditEntry) -> AuditEntryView:
    return view_of(AuditEntryView, entry, id=entry.seq, actor=entry.actor_name)
