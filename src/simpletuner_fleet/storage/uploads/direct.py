"""Lets a job's worker send content straight to the bucket, by links for one part each.

The orchestrator begins the upload, signs the links behind the same fence and quota as for parts that come through it,
and has the storage itself digest what arrived before the content counts. Uploads under way are found by their keys in
the bucket, so that a restart or another leader continues them; memory only saves requests.
"""

import logging

from msgspec import Struct, field

from simpletuner_fleet.core.errors import DigestMismatch, DirectUnavailable, StoreUnavailable
from simpletuner_fleet.core.training import checkpoint, direct
from simpletuner_fleet.core.training.direct import Staging
from simpletuner_fleet.ports.direct import DirectBlobs, SignedLink, StagedFile, StagedPart
from simpletuner_fleet.protocol.uploads import DirectAnswer, DirectAsked

log = logging.getLogger(__name__)


class UnderWay(Struct, frozen=True, kw_only=True):
    staging: Staging
    file: StagedFile


class DirectStorage(Struct, kw_only=True):
    """Describes the bucket that workers reach directly, and the uploads that are under way there."""

    blobs: DirectBlobs
    for_browsers: bool = False
    """Whether browsers, too, are sent to the bucket."""
    trouble: str = "It was not tried yet."
    """Why it is not used; '' where it is."""
    under_way: dict[str, dict[str, UnderWay]] = field(default_factory=dict)
    """By job and SHA-256. A job that is not in it has to be looked up in the bucket."""
    stored_files: int = 0
    stored_bytes: int = 0
    links: int = 0

    async def prove(self) -> None:
        """Tests everything that direct uploads need, and logs where the result changes what is done."""
        try:
            await self.blobs.prove()
        except StoreUnavailable as error:
            trouble = error.detail or "The S3 storage did not answer as it should."
        else:
            trouble = ""
        if trouble and trouble != self.trouble:
            log.warning("files do not go straight to the bucket, but through this server: %s", trouble)
        elif self.trouble and not trouble:
            log.info("workers send large files straight to the bucket")
        self.trouble = trouble

    def object_link(self, sha256: str, name: str) -> str:
        self.links += 1
        return self.blobs.object_link(sha256, name)

    async def of_job(self, job_id: str) -> dict[str, UnderWay]:
        known = self.under_way.get(job_id)
        if known is None:
            listed: dict[str, UnderWay] = {}
            async for file in self.blobs.staged(f"{direct.STAGED}/{job_id}/"):
                staging = direct.staging_of(file.key)
                if staging and staging.key == file.key:
                    listed[staging.sha256] = UnderWay(staging=staging, file=file)
            known = self.under_way.setdefault(job_id, listed)
        return known

    async def bytes_under_way(self, job_id: str, except_sha256: str) -> int:
        """Returns how many bytes are under way.

        A file counts in full from its first link on, since links may be used.
        """
        files = await self.of_job(job_id)
        return sum(one.staging.size for sha256, one in files.items() if sha256 != except_sha256)

    async def forget(self, job_id: str, sha256: str) -> None:
        """Drops what is staged of the file."""
        one = (await self.of_job(job_id)).pop(sha256, None)
        if one:
            await self.blobs.drop(one.file)

    async def begin(self, staging: Staging) -> UnderWay:
        one = UnderWay(staging=staging, file=await self.blobs.begin(staging.key))
        (await self.of_job(staging.job_id))[staging.sha256] = one
        return one

    async def answer(self, one: UnderWay, asked: DirectAsked) -> DirectAnswer:
        staging = one.staging
        if asked.part is None:
            return DirectAnswer(part_bytes=staging.part_bytes, have=await self._have(one))
        size = staging.part_size(asked.part.number)
        checkpoint.check_digest(asked.part.sha256, "$.part.sha256")
        link: SignedLink = self.blobs.part_link(one.file, asked.part.number, size, asked.part.sha256)
        self.links += 1
        return DirectAnswer(part_bytes=staging.part_bytes, url=link.url, headers=link.headers)

    async def _have(self, one: UnderWay) -> list[int]:
        if not one.file.upload_id:
            return list(range(1, one.staging.part_count + 1))
        return [part.number for part in await self._good_parts(one)]

    async def _good_parts(self, one: UnderWay) -> list[StagedPart]:
        staging = one.staging
        return [
            part
            for part in await self.blobs.parts(one.file)
            if part.number <= staging.part_count and part.size == staging.part_size(part.number)
        ]

    async def put_together(self, one: UnderWay) -> UnderWay | None:
        """Joins the parts of a file; returns None while some are missing."""
        if not one.file.upload_id:
            return one
        parts = await self._good_parts(one)
        if [part.number for part in parts] != list(range(1, one.staging.part_count + 1)):
            return None
        whole = UnderWay(staging=one.staging, file=await self.blobs.put_together(one.file, parts))
        known = self.under_way.get(one.staging.job_id)
        if known is not None:  # the sweep may have forgotten the job meanwhile
            known[one.staging.sha256] = whole
        return whole

    async def store(self, one: UnderWay) -> None:
        """Stores the file. Raises DigestMismatch, and drops what was staged, where the bytes are not the right ones."""
        staging = one.staging
        if not await self.blobs.store(one.file, staging.sha256, staging.size):
            await self.forget(staging.job_id, staging.sha256)
            raise DigestMismatch(staging.sha256)


def insist_on(storage_direct: DirectStorage | None) -> DirectStorage:
    """Returns the bucket. Raises DirectUnavailable where files go through the orchestrator."""
    if storage_direct is None:
        raise DirectUnavailable("Files go through the orchestrator here.")
    if storage_direct.trouble:
        raise DirectUnavailable(f"Files go through the orchestrator for now. {storage_direct.trouble}")
    return storage_direct
