"""Lets workers write to and read from a bucket by themselves, with links that are signed for one call each.

What they write is staged under keys that nothing reads. S3 itself computes its digest: it copies what was staged to a
key that no link was ever made for, and tells the SHA-256 of the copy. Only a copy that is what it should be is copied
on, and becomes an object.
"""

import base64
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from urllib.parse import quote

import httpx2

from simpletuner_fleet.blobs.s3 import object_path
from simpletuner_fleet.blobs.s3_refusals import said_with
from simpletuner_fleet.blobs.s3_requests import BucketPlace, S3Answer, S3Requests, whole_answer
from simpletuner_fleet.blobs.s3_signing import Signer
from simpletuner_fleet.core.errors import NotLeader, StoreUnavailable
from simpletuner_fleet.ports import MARK
from simpletuner_fleet.ports.direct import SignedLink, StagedFile, StagedPart

LINK_S = 900
CHECKED = ".checked"
PROBES = "direct/probe"
TRIAL = "direct/trial"
PROBE_BYTES = 1024
PROBE_S = 10.0
WHOLE_PROBE_S = 30.0


class DirectBucket:
    """Implements ports.DirectBlobs in an S3 bucket."""

    def __init__(
        self,
        place: BucketPlace,
        signer: Signer,
        workers_endpoint: str,
        may_promise: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Asks `may_promise`, whether this orchestrator leads for sure, immediately before each change."""
        self._place = place
        self._workers_place = BucketPlace(endpoint=workers_endpoint, bucket=place.bucket, prefix=place.prefix)
        self._signer = signer
        self._requests = S3Requests(place, signer)
        self._clock = clock
        self._may_promise = may_promise

    async def close(self) -> None:
        await self._requests.close()

    async def begin(self, key: str) -> StagedFile:
        self._insist()
        return StagedFile(key=key, upload_id=await self._requests.begin_upload(key))

    async def staged(self, prefix: str) -> AsyncIterator[StagedFile]:
        async for file in self._requests.uploads(prefix):
            yield file
        async for file in self._requests.keys(prefix):
            yield file

    async def parts(self, file: StagedFile) -> list[StagedPart]:
        return await self._requests.parts(file.key, file.upload_id)

    def part_link(self, file: StagedFile, number: int, size: int, sha256: str) -> SignedLink:
        return self._part_link(self._workers_place, file, number, size, sha256)

    def _part_link(
        self, place: BucketPlace, file: StagedFile, number: int, size: int, sha256: str
    ) -> SignedLink:
        headers = _exactly(size, sha256)
        query = [("partNumber", str(number)), ("uploadId", file.upload_id)]
        url = self._signer.link("PUT", place.address(file.key), query, headers, self._clock(), LINK_S)
        return SignedLink(url=url, headers=headers)

    async def put_together(self, file: StagedFile, parts: Sequence[StagedPart]) -> StagedFile:
        self._insist()
        await self._requests.put_together(file.key, file.upload_id, parts)
        return StagedFile(key=file.key)

    async def store(self, file: StagedFile, sha256: str, size: int) -> bool:
        self._insist()
        checked = file.key + CHECKED
        digest = await self._requests.copy(file.key, checked, size)
        if digest != sha256 or await self._requests.size(checked) != size:
            await self._delete(checked)
            return False
        self._insist()
        await self._requests.copy(checked, object_path(sha256), size)
        await self._delete(checked)
        return True

    async def drop(self, file: StagedFile) -> None:
        self._insist()
        if not file.upload_id:
            await self._delete(file.key)
            return
        with suppress(FileNotFoundError):
            await self._requests.abort_upload(file.key, file.upload_id)

    def object_link(self, sha256: str, name: str, *, own: bool = False) -> str:
        place = self._place if own else self._workers_place
        disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}"
        query = [
            ("response-content-disposition", disposition),
            ("response-content-type", "application/octet-stream"),
            ("response-cache-control", "no-store"),
        ]
        return self._signer.link("GET", place.address(object_path(sha256)), query, {}, self._clock(), LINK_S)

    def mark_link(self) -> str:
        return self._signer.link("GET", self._workers_place.address(MARK), [], {}, self._clock(), LINK_S)

    def trial_link(self, size: int, sha256: str) -> SignedLink:
        headers = _exactly(size, sha256)
        url = self._signer.link("PUT", self._workers_place.address(TRIAL), [], headers, self._clock(), LINK_S)
        return SignedLink(url=url, headers=headers)

    async def prove(self) -> None:
        """Sends a part by a link of our own making, has S3 digest it, and reads it by another link."""
        content = secrets.token_bytes(PROBE_BYTES)
        sha256 = hashlib.sha256(content).hexdigest()
        file = await self.begin(f"{PROBES}/{sha256}")
        try:
            await self._send_probe(file, content, sha256)
            if file not in [one async for one in self.staged(file.key)]:
                raise StoreUnavailable("The S3 storage does not list the uploads that are under way.")
            file = await self.put_together(file, await self.parts(file))
            if not await self.store(file, sha256, PROBE_BYTES):
                raise StoreUnavailable("The S3 storage does not tell the SHA-256 of what it copies.")
            await self._fetch_probe(content, sha256)
            await self._delete(object_path(sha256))
        except FileNotFoundError as error:
            raise StoreUnavailable("The S3 storage does not keep what is sent to it in parts.") from error
        finally:
            await self.drop(file)

    async def _send_probe(self, file: StagedFile, content: bytes, sha256: str) -> None:
        link = self._part_link(self._place, file, 1, len(content), sha256)
        answer = await _exchanged("PUT", link.url, link.headers, content)
        if answer.status_code != 200:
            said = said_with(answer.status_code, answer.content)
            raise StoreUnavailable(f"The S3 storage does not take signed links ({said}).")

    async def _fetch_probe(self, content: bytes, sha256: str) -> None:
        answer = await _exchanged("GET", self.object_link(sha256, "probe", own=True), {}, b"")
        if answer.content != content:
            said = said_with(answer.status_code, answer.content)
            raise StoreUnavailable(f"The S3 storage does not give what a signed link asks for ({said}).")

    async def _delete(self, key: str) -> None:
        with suppress(FileNotFoundError):
            await self._requests.delete(key)

    def _insist(self) -> None:
        if not self._may_promise():
            raise NotLeader("This orchestrator is not sure it still leads; nothing was changed.")


def _exactly(size: int, sha256: str) -> dict[str, str]:
    """Returns the headers that a link is signed with, so that nothing else can be sent by it."""
    checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
    return {"content-length": str(size), "x-amz-checksum-sha256": checksum}


async def _exchanged(method: str, url: str, headers: dict[str, str], content: bytes) -> S3Answer:
    try:
        async with httpx2.AsyncClient(timeout=PROBE_S) as http:
            request = http.build_request(method, url, headers=headers, content=content)
            return await whole_answer(http, request, WHOLE_PROBE_S)
    except (httpx2.RequestError, TimeoutError) as error:
        # Its own words may hold the link.
        raise StoreUnavailable(
            f"The S3 storage cannot be reached by a link ({type(error).__name__})."
        ) from None
