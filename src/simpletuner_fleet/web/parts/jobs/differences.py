"""Lists what changed between two configs, for a table."""

from typing import Any

import msgspec
from msgspec import UNSET, Struct

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.configs.bundle_diff import diff_bundles

VALUE_CHARS = 2_000


class Difference(Struct, frozen=True, kw_only=True):
    """Describes a field that changed between two configs.

    `was` is empty where the field is new, `now` where it is gone.
    """

    path: str
    was: str
    now: str


def differences(was: Bundle, now: Bundle) -> list[Difference]:
    return [
        Difference(path=change.path.removeprefix("$."), was=_shown(change.was), now=_shown(change.is_))
        for change in diff_bundles(was, now)
    ]


def json_text(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def _shown(value: Any) -> str:
    return "" if value is UNSET else json_text(value)[:VALUE_CHARS]
