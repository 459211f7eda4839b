"""The sweep as most tests want it: with the day that a file stands on the list behind it."""

from msgspec.structs import replace

from simpletuner_fleet.storage.storage import Storage
from simpletuner_fleet.storage.sweeping.sweeper import sweep_storage_once


async def swept(storage: Storage) -> int:
    """Both steps at once; returns how many files went."""
    storage.fleet.policy = replace(storage.fleet.policy, object_delete_delay_s=0.0)
    return await sweep_storage_once(storage) + await sweep_storage_once(storage)
