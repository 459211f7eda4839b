"""Reads settings that people make, of which most are one JSON document each, and names those that cannot be read."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.money.amounts import DEFAULT_CURRENCY, UNKNOWN_CURRENCY, checked_currency
from simpletuner_fleet.core.money.prices import PriceRule
from simpletuner_fleet.core.people.approvals import ApprovalRule
from simpletuner_fleet.core.people.own_roles import ROLE_PREFIX, OwnRole
from simpletuner_fleet.core.people.quotas import Quota
from simpletuner_fleet.core.people.sign_in.stored import PROVIDER_PREFIX, StoredProvider
from simpletuner_fleet.core.people.teams import TEAM_PREFIX, Team
from simpletuner_fleet.core.placement.shares import FairShare
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.engine.kept_settings import SETTINGS_TABLE
from simpletuner_fleet.ports import SetAsideRow, View

S = TypeVar("S", bound=Struct)

QUOTA_PREFIX = "quota:"
RULE_PREFIX = "approval_rule:"
PRICE_PREFIX = "price_rule:"
LIMITS_SETTING = "limits"
FAIR_SHARE_SETTING = "fair_share"
CURRENCY_SETTING = "currency"
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
    return None if stored is None else next(iter(_readable({key: stored}, struct, unreadable)), None)


def currency_in(view: View, unreadable: list[SetAsideRow]) -> str:
    """Returns the currency of all amounts, unknown where its setting cannot be read; then it adds that to `unreadable`."""
    stored = view.setting(CURRENCY_SETTING)
    return DEFAULT_CURRENCY if stored is None else _read_currency(stored, unreadable)


def unreadable_documents(settings: Mapping[str, str]) -> list[SetAsideRow]:
    """Returns those of all settings that people make and that cannot be read."""
    unreadable: list[SetAsideRow] = []
    for key, text in settings.items():
        if key == CURRENCY_SETTING:
            _read_currency(text, unreadable)
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
            unreadable.append(
                SetAsideRow(table=SETTINGS_TABLE, id=key, why=f"{type(error).__name__}: {error}")
            )
    return readable


def _read_currency(stored: str, unreadable: list[SetAsideRow]) -> str:
    try:
        return checked_currency(str(stored))
    except Invalid as error:
        unreadable.append(SetAsideRow(table=SETTINGS_TABLE, id=CURRENCY_SETTING, why=str(error)))
        return UNKNOWN_CURRENCY
