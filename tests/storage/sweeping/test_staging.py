"""Uploads straight to the bucket that nobody goes on with: one that the bucket keeps holds up no other."""

import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import cast

import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.training.direct import Staging
from simpletuner_fleet.ports.direct import DirectBlobs, StagedFile
from simpletuner_fleet.storage.sweeping.staging import drop_abandoned_staging
from simpletuner_fleet.storage.uploads.direct import DirectStorage, UnderWay
from simpletuner_fleet.store import SqliteStore
from simpletuner_fleet.store.rows.jobs import JOBS
from tests.http.api_kit import orchestrator
from tests.ready_databases import lay_sqlite

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def noted_for_no_other_test() -> Iterator[None]:
    """A process remembers the rows that it has set aside as long as it lives."""
    yield
    JOBS.set_aside.clear()


def staged_file(number: int, job_id: str = "j_gone") -> StagedFile:
    digest = f"{number:064x}"
    staging = Staging(job_id=job_id, epoch=1, sha256=digest, size=9 * MIB, part_bytes=5 * MIB)
    return StagedFile(key=staging.key)


class SmallBucket:
    """Holds a few staged files, and refuses to drop one of them."""

    def __init__(self) -> None:
        self.files = [staged_file(number) for number in range(3)]
        self.kept: StagedFile | None = self.files[1]

    async def staged(self, prefix: str) -> AsyncIterator[StagedFile]:
        for file in list(self.files):
            yield file

    async def drop(self, file: StagedFile) -> None:
        if file == self.kept:
            raise StoreUnavailable("The bucket refuses.")
        self.files.remove(file)


async def test_an_upload_that_the_bucket_keeps_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    bucket = SmallBucket()
    direct = DirectStorage(blobs=cast(DirectBlobs, bucket), trouble="")
    async with orchestrator() as running:
        assert await drop_abandoned_staging(running.deps.storage, direct, before=0.0) == 2
        assert bucket.files == [staged_file(1)]
        assert f"the staged file {staged_file(1).key} cannot be deleted" in caplog.text
        bucket.kept = None
        assert await drop_abandoned_staging(running.deps.storage, direct, before=0.0) == 1
    assert bucket.files == []


async def test_an_upload_whose_job_cannot_be_read_stays_and_holds_up_no_other(tmp_path: Path) -> None:
    file = tmp_path / "fleet.db"
    store = SqliteStore(lay_sqlite(file))
    async with orchestrator(store=store) as running:
        damaged = str((await running.submit())["job_id"])
    await store.close()
    with sqlite3.connect(file) as connection:
        assert connection.execute("UPDATE jobs SET requires = '[1' WHERE id = ?", (damaged,)).rowcount == 1
    connection.close()
    bucket = SmallBucket()
    bucket.kept = None
    bucket.files.insert(0, staged_file(9, damaged))
    under_way: dict[str, dict[str, UnderWay]] = {damaged: {}, "j_gone": {}}
    direct = DirectStorage(blobs=cast(DirectBlobs, bucket), trouble="", under_way=under_way)
    store = SqliteStore(file)
    async with orchestrator(store=store) as running:
        assert await drop_abandoned_staging(running.deps.storage, direct, before=0.0) == 3
    await store.close()
    assert bucket.files == [staged_file(9, damaged)]
    assert list(under_way) == [damaged]
