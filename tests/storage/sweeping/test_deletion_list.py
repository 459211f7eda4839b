"""The list of what is about to be deleted: bounded, and kept whatever a round meets."""

import hashlib
import sqlite3
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.errors import StorageLow, StoreUnavailable
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.storage.sweeping import deletion_list, whole_lists
from simpletuner_fleet.storage.sweeping.deletion_list import KEY, MOST_LISTED, DeletionList
from simpletuner_fleet.storage.sweeping.sweeper import sweep_storage_once
from simpletuner_fleet.storage.sweeping.whole_lists import READ_BYTES
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.core.builders import a_job
from tests.http.api_kit import orchestrator

DAY_S = 86_400.0


async def put_objects(blobs: MemoryBlobs, count: int) -> list[str]:
    names = []
    for number in range(count):
        content = str(number).encode()
        names.append(hashlib.sha256(content).hexdigest())
        await blobs.put_part("uploads/orphan", 0, content)
        assert await blobs.seal("uploads/orphan", names[-1], len(content))
    return names


async def stored(blobs: MemoryBlobs) -> set[str]:
    return {name async for name in MemoryBlobs.objects(blobs)}


async def listed(blobs: MemoryBlobs) -> set[str]:
    content = await blobs.read(KEY, 0, READ_BYTES)
    return set(msgspec.json.decode(content, type=dict[str, float])) if content else set()


def test_the_longest_list_can_be_read_again() -> None:
    entry = msgspec.json.encode({"f" * 64: 1_794_989_221.0695032})
    assert len(entry) * MOST_LISTED < READ_BYTES


async def test_of_more_files_than_the_list_takes_all_go_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion_list, "MOST_LISTED", 6)
    monkeypatch.setattr(whole_lists, "READ_BYTES", 600)
    blobs = MemoryBlobs()
    await put_objects(blobs, 20)
    async with orchestrator(blobs=blobs, policy=Policy(object_delete_delay_s=DAY_S)) as running:
        for gone in (0, 6, 6, 6, 2):
            assert await sweep_storage_once(running.deps.storage) == gone
            assert len(await listed(blobs)) <= 6
            running.clock.at += DAY_S
    assert (await stored(blobs), await listed(blobs)) == (set(), set())


class KeepsSome(MemoryBlobs):
    """A storage in which some files cannot be deleted."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.undeletable: set[str] = set()
        self.error = error

    async def delete_object(self, sha256: str) -> None:
        if sha256 in self.undeletable:
            raise self.error
        await super().delete_object(sha256)


@pytest.mark.parametrize("error", [PermissionError("read-only"), StoreUnavailable("The bucket refuses.")])
async def test_one_file_that_cannot_be_deleted_keeps_no_other(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    blobs = KeepsSome(error)
    names = await put_objects(blobs, 4)
    blobs.undeletable = {names[0], names[2]}
    async with orchestrator(blobs=blobs, policy=Policy(object_delete_delay_s=DAY_S)) as running:
        assert await sweep_storage_once(running.deps.storage) == 0
        running.clock.at += DAY_S
        assert await sweep_storage_once(running.deps.storage) == 2
        assert await stored(blobs) == await listed(blobs) == blobs.undeletable
        assert f"the stored file {names[0]} cannot be deleted" in caplog.text
        assert "2 stored files that no job has any more could not be deleted" in caplog.text
        blobs.undeletable = set()
        assert await sweep_storage_once(running.deps.storage) == 2, "they have waited long enough"
    assert await listed(blobs) == set()


class BreaksOff(MemoryBlobs):
    """A storage that is away in the middle of a listing."""

    after: int | None = None

    async def objects(self) -> AsyncIterator[str]:
        number = 0
        async for name in super().objects():
            if number == self.after:
                raise StoreUnavailable("The storage is away.")
            yield name
            number += 1


async def test_a_round_that_breaks_off_keeps_what_it_did_not_come_to_on_the_list() -> None:
    blobs = BreaksOff()
    names = await put_objects(blobs, 4)
    async with orchestrator(blobs=blobs, policy=Policy(object_delete_delay_s=DAY_S)) as running:
        assert await sweep_storage_once(running.deps.storage) == 0
        running.clock.at += DAY_S
        blobs.after = 2
        with pytest.raises(StoreUnavailable):
            await sweep_storage_once(running.deps.storage)
        assert await stored(blobs) == await listed(blobs) == set(names[2:])
        blobs.after = None
        assert await sweep_storage_once(running.deps.storage) == 2
    assert await listed(blobs) == set()


class KeepsParts(MemoryBlobs):
    """A storage in which parts of one job cannot be deleted."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def delete(self, prefix: str) -> None:
        if prefix.startswith("uploads/j_gone"):
            raise self._error
        await super().delete(prefix)


@pytest.mark.parametrize("error", [PermissionError("read-only"), StoreUnavailable("The bucket refuses.")])
async def test_parts_that_cannot_be_deleted_keep_no_other_file(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    blobs = KeepsParts(error)
    await put_objects(blobs, 2)
    await blobs.put_part("uploads/j_gone/half", 0, b"half")
    await blobs.put_part("uploads/j_later/half", 0, b"half")
    async with orchestrator(blobs=blobs, policy=Policy(object_delete_delay_s=DAY_S)) as running:
        assert await sweep_storage_once(running.deps.storage) == 0
        assert "a part of j_gone cannot be deleted" in caplog.text
        assert await blobs.names("uploads") == ["j_gone"]
        running.clock.at += DAY_S
        assert await sweep_storage_once(running.deps.storage) == 2


async def test_parts_of_a_job_that_cannot_be_read_are_kept_and_keep_no_others(tmp_path: Path) -> None:
    file, blobs = tmp_path / "fleet.db", MemoryBlobs()
    store = SqliteStore(file)
    await store.write(lambda tx: tx.add_job(a_job("j_bad", state=JobState.COMPLETED), b"{}"))
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE jobs SET tags = '[['")
    connection.close()
    await blobs.put_part("uploads/j_bad/half", 0, b"half")
    await blobs.put_part("uploads/j_gone/half", 0, b"half")
    async with orchestrator(store=store, blobs=blobs) as running:
        await sweep_storage_once(running.deps.storage)
        assert await blobs.names("uploads") == ["j_bad"]
    await store.close()


class EndsMidway(MemoryBlobs):
    """A storage whose server ends, or whose disk is full, after so many further changes."""

    left = 1_000

    async def append(self, key: str, offset: int, data: bytes) -> int:
        self._count()
        return await super().append(key, offset, data)

    async def delete(self, prefix: str) -> None:
        self._count()
        await super().delete(prefix)

    def _count(self) -> None:
        if self.left == 0:
            raise StorageLow("There is no space left.")
        self.left -= 1


@pytest.mark.parametrize("changes", range(6))
async def test_no_list_is_lost_by_an_end_midway(changes: int) -> None:
    blobs = EndsMidway()

    async def save_with(name: str) -> None:
        to_go = await DeletionList.load(blobs)
        for one in ("first", name):
            to_go.is_due(one, 10.0, DAY_S)
        await to_go.save(whole=True)

    await save_with("second")
    blobs.left = changes
    with suppress(StorageLow):
        await save_with("third")
    blobs.left = 1_000
    assert (await DeletionList.load(blobs)).is_due("first", 10.0 + DAY_S, DAY_S)
    assert not (await DeletionList.load(blobs)).is_due("third", 10.0, DAY_S)
