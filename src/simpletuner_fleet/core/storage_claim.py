"""Decides whether an orchestrator may use a storage: each belongs to one fleet, which is one database."""

from enum import StrEnum

from msgspec import Struct


class StorageClaim(StrEnum):
    OURS = "ours"
    """The storage says so."""
    MARK_IT = "mark_it"
    """Nobody's yet, or our own from before storages were marked: it is marked with our id."""
    TAKE_ITS_ID = "take_its_id"
    """This database is a copy from before fleets had ids, and its files are there: the fleet is the storage's."""
    STRANGER = "stranger"
    """Another fleet's, or this is not the database that its files belong to: nothing may be touched."""


class StorageFacts(Struct, frozen=True, kw_only=True):
    database_id: str | None
    """The fleet's id as the database has it; None where it has none yet."""
    storage_id: str | None
    """The fleet's id as the storage has it; None where it carries none."""
    holds_files: bool
    """Whether anything is stored there."""
    knows_files: bool
    """Whether the database knows any of it."""


def decide_claim(facts: StorageFacts) -> StorageClaim:
    if facts.storage_id is None:
        return StorageClaim.STRANGER if facts.holds_files and not facts.knows_files else StorageClaim.MARK_IT
    if facts.storage_id == facts.database_id:
        return StorageClaim.OURS
    if facts.database_id is None and facts.knows_files:
        return StorageClaim.TAKE_ITS_ID
    return StorageClaim.STRANGER
