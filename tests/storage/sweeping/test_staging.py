"""Uploads straight to the bucket that nobody goes on with: one that the bucket keeps holds up no other."""

from collections.abc import AsyncIterator
from typing import cast

import pytest

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.training.direct import Staging
from simpletuner_fleet.ports.direct import DirectBlobs, StagedFile
from simpletuner_fleet.storage.sweeping.staging import drop_abandoned_staging
from simpletuner_fleet.storage.uploads.direct import DirectStorage
from tests.http.api_kit import orchestrator

MIB = 1024 * 1024


def staged_file(number: int) -> StagedFile:
    digest = f"{number:064x}"
    staging = Staging(job_id="j_gone", epoch=1, sha256=digest, size=9 * MIB, part_bytes=5 * MIB)
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
