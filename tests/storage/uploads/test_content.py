"""One upload protocol, whoever content is for: the same story for a job's attempt and for a person's dataset."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from pathlib import Path

import pytest

from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.errors import DigestMismatch, Invalid, ObjectsMissing, QuotaExceeded, StaleAttempt
from simpletuner_fleet.core.jobs.fencing import Claim, Turn
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.protocol.uploads import ObjectAsked, ObjectMissing
from simpletuner_fleet.storage.storage import Storage
from simpletuner_fleet.storage.uploads import content
from simpletuner_fleet.storage.uploads.content import UploadOwner
from simpletuner_fleet.storage.uploads.datasets import DatasetUploads
from simpletuner_fleet.storage.uploads.jobs import JobUploads
from simpletuner_fleet.store import open_store
from simpletuner_fleet.store.sql.uploads import UploadsView
from tests.http.api_kit import Running, orchestrator

WHOLE = bytes(range(256)) * 40
OTHER = b"other"
QUOTA_BYTES = 15_000
LONG_SILENCE_S = 200


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def asked(*contents: bytes) -> list[ObjectAsked]:
    return [ObjectAsked(sha256=sha(data), size=len(data)) for data in contents]


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 1000):
        yield data[at : at + 1000]


async def job_owner(running: Running, name: str = "gpu-1") -> JobUploads:
    agent = await running.worker(name)
    await running.submit()
    offer = await agent.take()
    return JobUploads(running.fleet, Claim(agent.id, Turn(offer["job_id"], offer["epoch"])))


async def dataset_owner(running: Running, name: str = "gpu-1") -> DatasetUploads:
    return DatasetUploads(running.deps.storage, name)


Owners = Callable[..., Awaitable[UploadOwner]]


class Upload:
    def __init__(self, storage: Storage, owner: UploadOwner) -> None:
        self.storage, self.owner = storage, owner

    async def missing(self, *contents: bytes) -> list[ObjectMissing]:
        return await content.missing(self.storage, self.owner, asked(*contents))

    async def put(self, whole: bytes, start: int, end: int, size: int | None = None) -> tuple[int, bool]:
        size = len(whole) if size is None else size
        sent = pieces(whole[start:end])
        answer = await content.put_part(self.storage, self.owner, sha(whole), size, start, sent)
        return answer.next_offset, answer.complete


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    policy = Policy(job_storage_bytes=QUOTA_BYTES, data_storage_bytes=QUOTA_BYTES)
    async with orchestrator(policy=policy) as started:
        yield started


@pytest.fixture(params=[job_owner, dataset_owner], ids=["job", "dataset"])
def owners(request: pytest.FixtureRequest) -> Owners:
    made: Owners = request.param
    return made


@pytest.fixture
async def upload(running: Running, owners: Owners) -> Upload:
    return Upload(running.deps.storage, await owners(running))


async def test_what_was_cut_off_goes_on_where_it_was_and_is_owned_once_it_is_whole(upload: Upload) -> None:
    assert [(one.sha256, one.offset) for one in await upload.missing(WHOLE, OTHER)] == [
        (sha(WHOLE), 0),
        (sha(OTHER), 0),
    ]
    assert await upload.put(WHOLE, 0, 3000) == (3000, False)
    assert [one.offset for one in await upload.missing(WHOLE, OTHER)] == [3000, 0]
    assert await upload.put(WHOLE, 5000, 6000) == (3000, False), "beyond a gap nothing is written"
    assert sha(WHOLE) not in await upload.owner.stored([sha(WHOLE)])
    assert await upload.put(WHOLE, 3000, len(WHOLE)) == (len(WHOLE), True)
    assert (await upload.owner.stored([sha(WHOLE)]))[sha(WHOLE)] == len(WHOLE)
    assert [one.sha256 for one in await upload.missing(WHOLE, OTHER)] == [sha(OTHER)]


async def test_saying_it_again_is_harmless(upload: Upload) -> None:
    assert await upload.put(WHOLE, 0, len(WHOLE)) == (len(WHOLE), True)
    assert await upload.put(WHOLE, 0, len(WHOLE)) == (len(WHOLE), True)
    assert await upload.put(WHOLE, 3000, len(WHOLE)) == (len(WHOLE), True)
    assert await upload.storage.blobs.names(upload.owner.folder) == []


async def test_bytes_that_are_something_else_are_dropped(upload: Upload) -> None:
    with pytest.raises(DigestMismatch):
        await content.put_part(upload.storage, upload.owner, sha(OTHER), 5, 0, pieces(b"lies!"))
    assert [one.offset for one in await upload.missing(OTHER)] == [0]
    with pytest.raises(Invalid):
        await upload.put(WHOLE, 0, len(WHOLE), size=3000)
    with pytest.raises(Invalid):
        await upload.put(WHOLE, 4000, len(WHOLE), size=3000)


async def test_there_is_room_for_so_much_and_no_more(upload: Upload) -> None:
    large = bytes(QUOTA_BYTES - len(WHOLE) + 1)
    with pytest.raises(QuotaExceeded):
        await upload.missing(WHOLE, large)
    await upload.put(WHOLE, 0, 9000)
    with pytest.raises(QuotaExceeded):
        await upload.put(bytes(7000), 0, 7000)
    await upload.put(WHOLE, 9000, len(WHOLE))
    with pytest.raises(QuotaExceeded):
        await upload.missing(large)


async def test_of_uploads_that_began_at_once_only_those_are_owned_that_fit_together(upload: Upload) -> None:
    """Each alone would fit when it begins, since nothing else has arrived then."""
    contents = [bytes([number]) * (QUOTA_BYTES * 2 // 5) for number in range(5)]
    for one in contents:
        assert await upload.put(one, 0, 1) == (1, False)
    answers = await asyncio.gather(
        *(upload.put(one, 1, len(one)) for one in contents), return_exceptions=True
    )
    assert sum(isinstance(answer, QuotaExceeded) for answer in answers) == 3
    owned = await upload.owner.stored([sha(one) for one in contents])
    assert list(owned.values()) == [QUOTA_BYTES * 2 // 5] * 2


async def test_nobody_goes_on_with_another_s_parts(running: Running, owners: Owners, upload: Upload) -> None:
    await upload.put(WHOLE, 0, 3000)
    other = Upload(upload.storage, await owners(running, "gpu-2"))
    assert [one.offset for one in await other.missing(WHOLE)] == [0]
    assert await other.put(WHOLE, 0, len(WHOLE)) == (len(WHOLE), True)
    assert [one.offset for one in await upload.missing(OTHER)] == [0]


def test_all_is_stored_only_with_its_size() -> None:
    content.check_all_stored({"a": 1, "b": 2}, [("a", 1), ("b", 2)])
    for contents in ([("a", 2)], [("a", 1), ("a", 2)], [("c", 1)]):
        with pytest.raises(ObjectsMissing):
            content.check_all_stored({"a": 1, "b": 2}, contents)


class CountingBlobs(MemoryBlobs):
    """Counts how often it is asked for the size of something."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0

    async def size(self, key: str) -> int:
        self.looks += 1
        return await super().size(key)


async def test_a_new_upload_does_not_ask_for_each_of_those_that_are_unfinished() -> None:
    blobs = CountingBlobs()
    async with orchestrator(blobs=blobs) as running:
        upload = Upload(running.deps.storage, await dataset_owner(running))
        for number in range(100):
            await blobs.put_part(f"{upload.owner.folder}/{sha(b'%d' % number)}", 0, b"half")
        blobs.looks = 0
        assert [one.offset for one in await upload.missing(b"0", WHOLE)] == [4, 0]
        await upload.put(WHOLE, 0, len(WHOLE))
        assert blobs.looks < 10


class InterruptedSeal(MemoryBlobs):
    """Something happens between the sealing of an object and the row that says whose it is."""

    then: Callable[[], Awaitable[None]] | None = None

    async def seal(self, key: str, sha256: str, size: int) -> bool:
        sealed = await super().seal(key, sha256, size)
        if self.then:
            await self.then()
        return sealed


async def test_an_attempt_that_is_lost_while_its_upload_ends_owns_nothing() -> None:
    blobs = InterruptedSeal()
    async with orchestrator(blobs=blobs) as running:
        upload = Upload(running.deps.storage, await job_owner(running))
        await running.agents[0].close_stream()
        blobs.then = lambda: running.pass_time(LONG_SILENCE_S)
        with pytest.raises(StaleAttempt):
            await upload.put(WHOLE, 0, len(WHOLE))
        assert not await running.fleet.read(lambda view: view.object_has_owner(sha(WHOLE)))


async def test_one_more_file_of_a_job_reads_nothing_of_the_files_that_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Least of all in the transaction that everybody waits for: a job may have stored thousands."""
    read: list[int | None] = []
    objects_of_job = UploadsView.objects_of_job

    def noted(view: UploadsView, job_id: str, shas: Collection[str] | None = None) -> dict[str, int]:
        read.append(None if shas is None else len(shas))
        return objects_of_job(view, job_id) if shas is None else objects_of_job(view, job_id, shas)

    monkeypatch.setattr(UploadsView, "objects_of_job", noted)
    store = open_store(f"sqlite:///{tmp_path / 'fleet.db'}")
    async with orchestrator(store) as running:
        upload = Upload(running.deps.storage, await job_owner(running))
        await upload.put(OTHER, 0, len(OTHER))
        read.clear()
        assert await upload.put(WHOLE, 0, len(WHOLE)) == (len(WHOLE), True)
        assert read
        assert set(read) == {1}
    await store.close()
