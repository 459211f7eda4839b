"""Reads settings that are one JSON document each, and leaves out and names those that cannot be read."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.money.prices import PriceRule
from simpletuner_fleet.core.people.approvals import ApprovalRule
from simpletuner_fleet.core.people.own_roles import ROLE_PREFIX, OwnRole
from simpletuner_fleet.core.people.quotas import Quota
from simpletuner_fleet.core.people.sign_in.stored import PROVIDER_PREFIX, StoredProvider
from simpletuner_fleet.core.people.teams import TEAM_PREFIX, Team
from simpletuner_fleet.core.placement.shares import FairShare
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.ports import SetAsideRow, View

S = TypeVar("S", bound=Struct)

QUOTA_PREFIX = "quota:"
RULE_PREFIX = "approval_rule:"
PRICE_PREFIX = "price_rule:"
LIMITS_SETTING = "limits"
FAIR_SHARE_SETTING = "fair_share"
TABLE = "settings"
BY_PREFIX: Mapping[str, type[Struct]] = {
    TEAM_PREFIX: Team,
    ROLE_PREFIX: OwnRole,
    QUOTA_PREFIX: Quota,
    RULE_PREFIX: ApprovalRule,
    PRICE_PREFIX: PriceRule,
    PROVIDER_PREFIX: StoredProvider,
}
ALONE: Mapping[str, type[Struct]] = {LIMITS_SETTING: Limits, FAIR_SHARE_SETTING: FairShare}


def documents(view: View, prefix: str, struct: type[S], unreadable: list[SetAsideRow]) -> list[S]:
    """Returns all whose names begin so and that can be read; it adds the others to `unreadable`."""
    return _readable(view.settings_with_prefix(prefix), struct, unreadable)


def document(view: View, key: str, struct: type[S], unreadable: list[SetAsideRow]) -> S | None:
    """Returns the one of this name; None also where it cannot be read, and then it is added to `unreadable`."""
    stored = view.setting(key)
    return next(iter(_readable({key: stored}, struct, unreadable)), None) if stored else None


def unreadable_documents(settings: Mapping[str, str]) -> list[SetAsideRow]:
    """Returns those of all settings that should be documents and cannot be read."""
    unreadable: list[SetAsideRow] = []
    for key, text in settings.items():
        kind = ALONE.get(key) or next(
            (one for begin, one in BY_PREFIX.items() if key.startswith(begin)), None
        )
        if kind is not None:
            _readable({key: text}, kind, unreadable)
    return unreadable


def _readable(settings: Mapping[str, str], struct: type[S], unreadable: list[SetAsideRow]) -> list[S]:
    readable = []
    for key, text in settings.items():
        try:
            readable.append(msgspec.json.decode(text, type=struct))
        except (ValueError, RecursionError) as error:
            unreadable.append(SetAsideRow(table=TABLE, id=key, why=f"{type(error).__name__}: {error}"))
    return readable
