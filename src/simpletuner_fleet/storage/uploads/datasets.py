"""Receives what people upload for datasets, within the quota that all datasets share."""

from collections.abc import Collection, Mapping
from itertools import islice

import msgspec

from simpletuner_fleet.core.errors import QuotaExceeded
from simpletuner_fleet.storage.deletions import is_deleted
from simpletuner_fleet.storage.storage import DELETING, Storage
from simpletuner_fleet.storage.sweeping.whole_lists import read_list, replace_list

DATASET_PARTS = "data-uploads"
COUNTED_FOR_S = 60.0
SEEN = "sweep/unfinished-parts.json"
"""Where the sweep keeps how large each unfinished upload was, and since when: memory does not outlive a restart."""
MOST_SEEN = 250_000

SeenParts = dict[str, tuple[int, float]]


class DatasetUploads:
    """Implements UploadOwner for one caller who uploads datasets.

    What it uploads belongs to everybody, once a dataset that all may see names it.
    """

    def __init__(self, storage: Storage, caller_id: str) -> None:
        self._storage = storage
        self._fleet = storage.fleet
        self._caller_id = caller_id

    @property
    def folder(self) -> str:
        return f"{DATASET_PARTS}/{self._caller_id}"

    @property
    def direct_job(self) -> None:
        return None

    async def stored(self, shas: Collection[str]) -> Mapping[str, int]:
        """Leaves out what others have sent, unless a dataset that all may see names it: a digest proves nothing."""
        look = self._fleet.read_now if len(shas) == 1 else self._fleet.read
        return await look(lambda view: view.dataset_objects(shas, self._caller_id))

    async def check_room(self, more_bytes: int) -> None:
        """Counts what others are about to own, too: many uploads may have begun while there was room for one."""
        allowed, counted = self._fleet.policy.data_storage_bytes, await self._counted_bytes()
        counted += self._storage.dataset_usage.coming_bytes
        if counted + more_bytes > allowed:
            raise QuotaExceeded(
                f"All datasets together can use {allowed} bytes; {counted} are in use.",
                next_step="Delete unused datasets, or ask for a higher SIMPLETUNER_DATA_STORAGE_GB.",
                quota_bytes=allowed,
            )

    async def check_turn(self) -> None:
        """Does nothing: a person has no turn, so who may begin may go on."""

    async def own(self, sha256: str, size: int) -> None:
        usage = self._storage.dataset_usage
        await self.check_room(size)
        usage.coming_bytes += size
        try:
            await self._fleet.act(
                lambda transaction: transaction.tx.own_dataset_object(
                    sha256, size, transaction.now, self._caller_id
                )
            )
            usage.counted_bytes += size
            usage.owned_bytes += size
        finally:
            usage.coming_bytes -= size

    async def _counted_bytes(self) -> int:
        """Returns at least as many bytes as datasets take. Nothing may happen between this and the use of its answer."""
        usage, now = self._storage.dataset_usage, self._fleet.clock.now()
        if usage.counted_at is None or not 0 <= now - usage.counted_at < COUNTED_FOR_S:
            owned_before = usage.owned_bytes
            counted = await self._fleet.read(lambda view: view.dataset_bytes())
            usage.counted_bytes = counted + usage.owned_bytes - owned_before
            usage.counted_at = now
        return usage.counted_bytes


async def drop_abandoned_dataset_parts(storage: Storage, before: float) -> None:
    """Deletes parts that have not grown since they were first seen at their size, if that was before this time."""
    now, known_parts = storage.fleet.clock.now(), await read_list(storage.blobs, SEEN, SeenParts) or {}
    remaining: SeenParts = {}
    for caller_id in await storage.blobs.names(DATASET_PARTS):
        sizes = await storage.blobs.part_sizes(f"{DATASET_PARTS}/{caller_id}")
        for sha256, size in sizes.items():
            key = f"{DATASET_PARTS}/{caller_id}/{sha256}"
            known_size, since = known_parts.get(key, (size, now))
            since = min(since, now) if known_size == size else now
            if since < before:
                await storage.fleet.announce(DELETING, f"parts of {sha256}")
                if await is_deleted(storage.blobs, f"a part of {sha256}", storage.blobs.delete(key)):
                    continue
            remaining[key] = (size, since)
    if remaining != known_parts:
        kept = dict(islice(remaining.items(), MOST_SEEN))
        await replace_list(storage.blobs, SEEN, msgspec.json.encode(kept) if kept else b"")
