"""Reads the settings that the server keeps for itself, and names those that cannot be read.

Nobody can set them anew by hand, so each reader says what holds instead: something by which nothing is lost, started or
let in that should not be. The server writes most of them again at their next change.
"""

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from simpletuner_fleet.core.configs.options import ReportedOptions
from simpletuner_fleet.core.people.accounts import OneTimeKey
from simpletuner_fleet.core.people.quota_news import KnownLevel
from simpletuner_fleet.core.people.stored_secret import StoredSecret
from simpletuner_fleet.core.restoring import HELD_UNTIL, LINKS_SINCE, RESTORED, RestoreNote
from simpletuner_fleet.ports import Ending, SetAsideRow, View

log = logging.getLogger(__name__)

T = TypeVar("T")
D = TypeVar("D")

SETTINGS_TABLE = "settings"
QUOTAS_TOLD = "quotas.told"
WAITS_READ = "notices.waits"
"""Up to which entry of the log waits have been looked at."""
EMPTIED_UNTIL = "retention.emptied_until"
FILES_LEFT = "retention.files_left"
KEY_PREFIX = "one_time_key:"
OPTIONS_PREFIX = "trainer.options."
SECRET_PREFIX = "secret:"
KEPT: Mapping[str, Any] = {
    QUOTAS_TOLD: dict[str, KnownLevel],
    WAITS_READ: int,
    EMPTIED_UNTIL: Ending,
    FILES_LEFT: list[str],
    RESTORED: RestoreNote,
    HELD_UNTIL: float,
    LINKS_SINCE: float,
}
KEPT_BY_PREFIX: Mapping[str, Any] = {
    KEY_PREFIX: OneTimeKey,
    OPTIONS_PREFIX: dict[str, ReportedOptions],
    SECRET_PREFIX: StoredSecret,
}

_named: dict[str, str] = {}
"""Why settings could not be read since the start, by their names."""


def read_setting(view: View, key: str, kind: type[T], damaged: D) -> T | D | None:
    """Returns what the setting holds; None where there is none, and `damaged` where it cannot be read."""
    stored = view.setting(key)
    return None if stored is None else decoded(key, stored, kind, damaged)


def decoded(key: str, stored: str, kind: type[T], damaged: D) -> T | D:
    """Returns what is stored, or `damaged` where it cannot be read, which is logged once."""
    try:
        value = msgspec.json.decode(stored, type=kind)
    except (ValueError, TypeError, RecursionError) as error:
        if key not in _named:
            log.error("the setting %s cannot be read and is set aside: %s", key, error)
        _named[key] = f"{type(error).__name__}: {error}"
        return damaged
    _named.pop(key, None)
    return value


def is_unreadable(view: View, key: str) -> bool:
    stored = view.setting(key)
    return stored is not None and bool(unreadable_of({key: stored}))


def look_through(view: View) -> None:
    """Reads all of them once, so that those that cannot be read are named before anybody needs them."""
    for key, stored in view.settings_with_prefix("").items():
        kind = _kind_of(key)
        if kind is not None:
            decoded(key, stored, kind, None)


def unreadable_now(view: View) -> list[SetAsideRow]:
    """Returns those of the settings that were found unreadable which still are."""
    return unreadable_of({key: stored for key in sorted(_named) if (stored := view.setting(key)) is not None})


def unreadable_of(settings: Mapping[str, str]) -> list[SetAsideRow]:
    """Returns those of these settings that cannot be read. It notes nothing: they may be another database's."""
    rows = []
    for key, stored in settings.items():
        kind = _kind_of(key)
        try:
            if kind is not None:
                msgspec.json.decode(stored, type=kind)
        except (ValueError, TypeError, RecursionError) as error:
            rows.append(SetAsideRow(table=SETTINGS_TABLE, id=key, why=f"{type(error).__name__}: {error}"))
    return rows


def _kind_of(key: str) -> Any:
    return KEPT.get(key) or next(
        (kind for start, kind in KEPT_BY_PREFIX.items() if key.startswith(start)), None
    )
