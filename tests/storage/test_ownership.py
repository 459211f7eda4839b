"""A storage belongs to one fleet; an orchestrator with another database neither starts there nor deletes anything."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.errors import StorageOfAnother
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.storage.ownership import claim_storage
from simpletuner_fleet.storage.sweeping.deletion_list import KEY
from simpletuner_fleet.storage.sweeping.sweeper import sweep_storage_once
from tests.http.api_kit import orchestrator
from tests.http.upload_kit import STATE, uploading


@pytest.fixture(params=["memory", "folder"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return MemoryBlobs() if request.param == "memory" else FolderBlobs(tmp_path / "blobs")


async def stored(blobs: Blobs) -> set[str]:
    return {sha256 async for sha256 in blobs.objects()}


async def a_fleet_with_files(blobs: Blobs, *, marked: bool = True) -> set[str]:
    async with orchestrator(blobs=blobs) as running:
        if marked:
            await claim_storage(running.deps.storage)
        up = await uploading(running)
        await up.checkpoint(10, {"state.bin": STATE})
    return await stored(blobs)


@pytest.mark.parametrize("marked", [True, False])
async def test_an_empty_database_is_a_stranger_to_a_storage_with_files(blobs: Blobs, marked: bool) -> None:
    files = await a_fleet_with_files(blobs, marked=marked)
    assert files
    async with orchestrator(blobs=blobs) as another:
        with pytest.raises(StorageOfAnother) as refusal:
            await claim_storage(another.deps.storage)
        assert "--adopt-storage" in (refusal.value.next or "")
    assert await stored(blobs) == files


async def test_the_same_database_comes_back_and_marks_what_was_there_before_marks_were(blobs: Blobs) -> None:
    async with orchestrator(blobs=blobs) as running:
        up = await uploading(running)
        await up.checkpoint(10, {"state.bin": STATE})
        fleet_id = await claim_storage(running.deps.storage)
        assert await claim_storage(running.deps.storage) == fleet_id
        assert (await blobs.mark() or b"").decode() == f'{{"fleet_id":"{fleet_id}"}}'


async def test_a_database_from_before_ids_that_knows_the_files_has_the_storages_id(blobs: Blobs) -> None:
    async with orchestrator(blobs=blobs) as running:
        up = await uploading(running)
        await up.checkpoint(10, {"state.bin": STATE})
        await blobs.put_mark(b'{"fleet_id":"f_theirs"}')
        assert await claim_storage(running.deps.storage) == "f_theirs"


async def test_nothing_is_swept_from_a_storage_that_another_fleet_has_taken(blobs: Blobs) -> None:
    policy = Policy(object_delete_delay_s=0.0)
    async with orchestrator(blobs=blobs, policy=policy) as running:
        await claim_storage(running.deps.storage)
        await blobs.put_part("uploads/orphan", 0, STATE)
        files = {await _sealed(blobs)}
        await blobs.put_mark(b'{"fleet_id":"f_theirs"}')
        for _ in range(3):
            running.clock.at += 1e6
            assert await sweep_storage_once(running.deps.storage) == 0
        assert await stored(blobs) == files


async def _sealed(blobs: Blobs) -> str:
    import hashlib

    sha256 = hashlib.sha256(STATE).hexdigest()
    assert await blobs.seal("uploads/orphan", sha256, len(STATE))
    return sha256


async def test_who_takes_a_storage_over_has_a_day_to_think_better_of_it(blobs: Blobs) -> None:
    files = await a_fleet_with_files(blobs)
    async with orchestrator(blobs=blobs) as another:
        storage = another.deps.storage
        await claim_storage(storage, adopt=True)
        assert await sweep_storage_once(storage) == 0
        listed = (await blobs.read(KEY, 0, 10_000)).decode()
        assert all(sha256 in listed for sha256 in files), "what will go can be read beforehand"
        another.clock.at += 86_399
        assert await sweep_storage_once(storage) == 0
        assert await stored(blobs) == files
        another.clock.at += 2
        assert await sweep_storage_once(storage) == len(files)
        assert await blobs.size(KEY) == 0, "the list is empty again"


async def test_what_is_known_again_leaves_the_list_and_waits_anew(blobs: Blobs) -> None:
    async with orchestrator(blobs=blobs) as running:
        storage = running.deps.storage
        await blobs.put_part("uploads/orphan", 0, STATE)
        sha256 = await _sealed(blobs)
        await sweep_storage_once(storage)
        up = await uploading(running)
        await up.checkpoint(10, {"state.bin": STATE})
        running.clock.at += 86_401
        assert await sweep_storage_once(storage) == 0
        assert await blobs.size(KEY) == 0
        assert sha256 in await stored(blobs)


async def test_no_delay_still_means_a_later_round(blobs: Blobs) -> None:
    async with orchestrator(blobs=blobs) as running:
        running.fleet.policy = replace(running.fleet.policy, object_delete_delay_s=0.0)
        await blobs.put_part("uploads/orphan", 0, STATE)
        await _sealed(blobs)
        assert await sweep_storage_once(running.deps.storage) == 0
        assert await sweep_storage_once(running.deps.storage) == 1
