"""Lists what changed between two configs, for a table."""

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.configs.bundle_diff import diff_bundles

VALUE_CHARS = 2_000
INDENTED_BYTES = 2**18
"""A longer text has no lines: indentation may make it many times as long."""


class Difference(Struct, frozen=True, kw_only=True):
    """Describes a field that changed between two configs.

    `was` is empty where the field is new, `now` where it is gone.
    """

    path: str
    was: str
    now: str


class Differences(Struct, frozen=True, kw_only=True):
    rows: list[Difference] = []
    hidden: int = 0
    """How many more there are."""
    at_least: bool = False
    """There are even more."""


async def differences(was: Bundle, now: Bundle) -> Differences:
    """Compares them in a thread, since large configs take a while."""
    return await asyncio.to_thread(_compared, was, now)


def json_text(value: Any, indented_bytes: int = INDENTED_BYTES) -> str:
    encoded = msgspec.json.encode(value)
    return msgspec.json.format(encoded, indent=2 if len(encoded) <= indented_bytes else 0).decode()


def cell_text(value: Any) -> str:
    """Returns the value for a cell of a table; nothing where there is none."""
    return "" if value is UNSET else json_text(value, VALUE_CHARS)[:VALUE_CHARS]


def _compared(was: Bundle, now: Bundle) -> Differences:
    difference = diff_bundles(was, now)
    rows = [
        Difference(path=change.path.removeprefix("$."), was=cell_text(change.was), now=cell_text(change.is_))
        for change in difference.changes
    ]
    return Differences(rows=rows, hidden=difference.left_out, at_least=difference.left_out_at_least)
