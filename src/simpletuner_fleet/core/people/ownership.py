"""Decides who may change a config, a dataset or a secret: its owner, and those with rights over everybody's."""

from collections.abc import Collection

from msgspec import Struct

from simpletuner_fleet.core.errors import NotYours
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.people.permissions import EVERYTHING
from simpletuner_fleet.core.people.visibility import FULL_VISIBILITY, VisibilityScope


class Writer(Struct, frozen=True, kw_only=True):
    """Identifies whoever wants to change a thing that belongs to somebody."""

    actor: Actor
    owns_as: str
    """The id under which things are theirs: a token owns for the user that it was made by."""
    above: bool = False
    """Stands above ownership, as an administrator does."""
    scope: VisibilityScope = FULL_VISIBILITY


def stands_above(held: Collection[str]) -> bool:
    return EVERYTHING in held


def may_change(writer: Writer, owner: str) -> bool:
    return writer.above or (bool(owner) and owner == writer.owns_as)


def refuse_others(writer: Writer, owner: str, owner_name: str, what: str) -> None:
    """Raises NotYours for a writer who may not change this; `owner` is empty for what has none.

    Things from before there were owners have none: only administrators may change them.
    """
    if may_change(writer, owner):
        return
    whose = f"belongs to {owner_name}" if owner else "has no owner, and is for administrators to change"
    raise NotYours(f"{what} {whose}.", owner=owner)
