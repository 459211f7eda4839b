"""Objects in S3 or anything that speaks it; what still grows stays in a folder.

S3 cannot append, so logs, metrics and the parts of uploads live in the folder. A whole and verified upload is sent on to
the bucket when it is sealed, in parts of its own, and then leaves the folder: it needs room for the uploads under way.
"""

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from simpletuner_fleet.blobs.folder import OBJECTS, FolderBlobs, object_segments
from simpletuner_fleet.core.checkpoint import SHA256
from simpletuner_fleet.core.errors import StoreUnavailable

T = TypeVar("T")
SEND_CHUNK_BYTES = 16 * 1024 * 1024
SENT_AT_ONCE = 4


class S3Blobs:
    """The promise of ports.Blobs."""

    def __init__(self, bucket: S3Store, staging: FolderBlobs, staging_root: Path) -> None:
        self._bucket = bucket
        self._staging = staging
        self._staging_root = staging_root
        self.append = staging.append
        self.read = staging.read
        self.size = staging.size
        self.delete = staging.delete
        self.names = staging.names
        self.put_part = staging.put_part
        self.part_size = staging.part_size

    async def seal(self, key: str, sha256: str, size: int) -> bool:
        if not await self._staging.verified(key, sha256, size):
            return False
        await answered(
            obstore.put_async(
                self._bucket,
                object_path(sha256),
                self._staging_root / key,
                chunk_size=SEND_CHUNK_BYTES,
                max_concurrency=SENT_AT_ONCE,
            )
        )
        await self._staging.delete(key)
        return True

    async def object_size(self, sha256: str) -> int | None:
        try:
            return int((await answered(obstore.head_async(self._bucket, object_path(sha256))))["size"])
        except FileNotFoundError:
            return None

    async def read_object(self, sha256: str, start: int, length: int) -> bytes:
        """What there is of it: shorter at the end, empty beyond it or where there is no object."""
        size = await self.object_size(sha256) or 0
        length = min(length, size - start)
        if length <= 0:
            return b""
        asked = obstore.get_range_async(self._bucket, object_path(sha256), start=start, length=length)
        return bytes(await answered(asked))

    async def delete_object(self, sha256: str) -> None:
        try:
            await answered(obstore.delete_async(self._bucket, object_path(sha256)))
        except FileNotFoundError:
            return

    async def objects(self) -> AsyncIterator[str]:
        async for page in obstore.list(self._bucket, prefix=OBJECTS):
            for meta in page:
                name = meta["path"].rpartition("/")[2]
                if SHA256.fullmatch(name):
                    yield name


def object_path(sha256: str) -> str:
    return "/".join(object_segments(sha256))


async def answered(asked: Awaitable[T]) -> T:
    """Trouble of the bucket passes, or an administrator ends it: the caller tries again either way."""
    try:
        return await asked
    except FileNotFoundError:
        raise
    except (BaseError, OSError) as error:
        raise StoreUnavailable(
            f"The S3 storage did not answer as it should ({type(error).__name__}).",
            next_step="Try again shortly. If it goes on, check SIMPLETUNER_STORAGE_URL and the bucket's credentials.",
        ) from error
