"""Checks whose storage this is: it carries its fleet's id (`fleet.json`), and no other orchestrator touches it."""

import logging

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import StorageOfAnother
from simpletuner_fleet.core.storage_claim import StorageClaim, StorageFacts, decide_claim
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.storage.storage import Storage

log = logging.getLogger(__name__)

FLEET_ID = "fleet.id"
FILES_LOOKED_AT = 200
"""So many files are looked up in the database: one that it knows is proof enough."""


class StorageMark(Struct, frozen=True, kw_only=True):
    """Names the fleet that a storage belongs to. The mark is at the root of the storage."""

    fleet_id: str


async def claim_storage(storage: Storage, *, adopt: bool = False) -> str:
    """Returns the fleet's id, which database and storage both carry from now on. Raises StorageOfAnother."""
    fleet, blobs = storage.fleet, storage.blobs
    database_id = await fleet.read(lambda view: view.setting(FLEET_ID))
    storage_id = await stored_id(blobs)
    holds, knows = await _look_at_files(fleet, blobs)
    claim = decide_claim(
        StorageFacts(database_id=database_id, storage_id=storage_id, holds_files=holds, knows_files=knows)
    )
    if claim is StorageClaim.STRANGER and not adopt:
        raise StorageOfAnother(_complaint(database_id, storage_id))
    if claim is StorageClaim.STRANGER:
        log.warning(
            "the storage of fleet %s is taken over, as --adopt-storage asks", storage_id or "(unmarked)"
        )
    fleet_id = (
        storage_id if claim is StorageClaim.TAKE_ITS_ID and storage_id else database_id or fleet.ids.new("f")
    )
    if fleet_id != database_id:
        await fleet.act(lambda transaction: transaction.tx.put_setting(FLEET_ID, fleet_id))
    if fleet_id != storage_id:
        await blobs.put_mark(msgspec.json.encode(StorageMark(fleet_id=fleet_id)))
    return fleet_id


async def insist_on_shared_storage(storage: Storage) -> None:
    """Raises StorageOfAnother for a storage without this fleet's mark, which the other orchestrators do not use.

    It is called where one fleet has several orchestrators.
    """
    fleet_id = await storage.fleet.read(lambda view: view.setting(FLEET_ID))
    await insist_on_mark(storage.blobs, fleet_id)


async def insist_on_mark(blobs: Blobs, fleet_id: str | None) -> None:
    """Raises StorageOfAnother for another fleet's storage. `fleet_id` is None where the fleet has no storage yet."""
    if fleet_id is not None and await stored_id(blobs) != fleet_id:
        raise StorageOfAnother(
            f"The fleet {fleet_id} keeps its files in a different storage from the one configured here.",
            next_step="Give all orchestrators the same SIMPLETUNER_STORAGE_URL: a bucket (s3://…) or a "
            "shared folder. If the files were moved here on purpose, start once with "
            "--adopt-storage.",
        )


async def is_still_ours(storage: Storage) -> bool:
    """Tells, before anything is deleted, whether no other fleet has taken the storage since this server started."""
    database_id = await storage.fleet.read(lambda view: view.setting(FLEET_ID))
    return database_id is None or await stored_id(storage.blobs) == database_id


async def stored_id(blobs: Blobs) -> str | None:
    """Returns the fleet's id from the mark; None without a mark. An unreadable mark still counts as somebody's."""
    mark = await blobs.mark()
    if mark is None:
        return None
    try:
        return msgspec.json.decode(mark, type=StorageMark).fleet_id
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "(unreadable)"


async def _look_at_files(fleet: Fleet, blobs: Blobs) -> tuple[bool, bool]:
    """Tells whether there are files, and whether the database knows one of the first few."""
    seen = 0
    async for sha256 in blobs.objects():
        if await fleet.read(lambda view, sha256=sha256: view.object_has_owner(sha256)):  # type: ignore[misc]
            return True, True
        seen += 1
        if seen == FILES_LOOKED_AT:
            break
    return seen > 0, False


def _complaint(database_id: str | None, storage_id: str | None) -> str:
    if storage_id is None:
        return "The storage holds files, and this database knows none of them: it is not the one that belongs to it."
    if database_id is None:
        return f"The storage belongs to the fleet {storage_id}, and this database is new."
    return f"The storage belongs to the fleet {storage_id}, and this database to {database_id}."
