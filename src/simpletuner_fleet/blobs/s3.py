"""Stores objects in S3 or anything that speaks it; what still grows stays in a folder.

S3 cannot append, so metrics, the parts of uploads, and the part of each log that was not sent on yet live in the
folder. A whole and verified upload is sent on to the bucket when it is sealed, in parts of its own, and then leaves
the folder, which needs room for the uploads under way.
"""

import asyncio
import os
from collections.abc import AsyncIterator

import obstore
from obstore.store import S3Store

from simpletuner_fleet.blobs.folder import OBJECTS, FolderBlobs, object_segments
from simpletuner_fleet.blobs.s3_calls import bucket_call, bucket_errors
from simpletuner_fleet.blobs.s3_logs import S3Logs
from simpletuner_fleet.core.training.checkpoint import SHA256
from simpletuner_fleet.ports import MARK

LOGS = "logs/"
SEND_CHUNK_BYTES = 16 * 1024 * 1024
SENT_AT_ONCE = 4


class S3Blobs:
    """Implements ports.Blobs in an S3 bucket, with a folder for what still grows."""

    def __init__(self, bucket: S3Store, staging: FolderBlobs) -> None:
        self._bucket = bucket
        self._staging = staging
        self.logs = S3Logs(bucket, staging)
        self.put_part = staging.put_part
        self.part_sizes = staging.part_sizes

    async def append(self, key: str, offset: int, data: bytes) -> int:
        backend = self.logs if key.startswith(LOGS) else self._staging
        return await backend.append(key, offset, data)

    async def read(self, key: str, start: int, length: int) -> bytes:
        backend = self.logs if key.startswith(LOGS) else self._staging
        return await backend.read(key, start, length)

    async def size(self, key: str) -> int:
        backend = self.logs if key.startswith(LOGS) else self._staging
        return await backend.size(key)

    async def truncate(self, key: str, size: int) -> None:
        backend = self.logs if key.startswith(LOGS) else self._staging
        await backend.truncate(key, size)

    async def delete(self, prefix: str) -> None:
        backend = self.logs if prefix.startswith(LOGS) else self._staging
        await backend.delete(prefix)

    async def names(self, prefix: str) -> list[str]:
        backend = self.logs if prefix == LOGS.rstrip("/") else self._staging
        return await backend.names(prefix)

    async def seal(self, key: str, sha256: str, size: int) -> bool:
        file = await self._staging.open_verified(key, sha256, size)
        if file is None:
            return False
        try:
            await self._send(file, sha256, size)
        finally:
            os.close(file)
        await self._staging.delete(key)
        return True

    async def _send(self, file: int, sha256: str, size: int) -> None:
        """Sends so many bytes of the file, and not what may come after them meanwhile."""
        small = await asyncio.to_thread(os.pread, file, size, 0) if size <= SEND_CHUNK_BYTES else None
        await bucket_call(
            obstore.put_async(
                self._bucket,
                object_path(sha256),
                _chunks(file, size) if small is None else small,
                chunk_size=SEND_CHUNK_BYTES,
                max_concurrency=SENT_AT_ONCE,
            )
        )

    async def object_size(self, sha256: str) -> int | None:
        try:
            return int((await bucket_call(obstore.head_async(self._bucket, object_path(sha256))))["size"])
        except FileNotFoundError:
            return None

    async def read_object(self, sha256: str, start: int, length: int) -> bytes:
        """Returns what there is of it: shorter at the end, empty beyond it or where there is no object."""
        size = await self.object_size(sha256) or 0
        length = min(length, size - start)
        if length <= 0:
            return b""
        call = obstore.get_range_async(self._bucket, object_path(sha256), start=start, length=length)
        return bytes(await bucket_call(call))

    async def delete_object(self, sha256: str) -> None:
        try:
            await bucket_call(obstore.delete_async(self._bucket, object_path(sha256)))
        except FileNotFoundError:
            return

    async def mark(self, name: str = MARK) -> bytes | None:
        try:
            answer = await bucket_call(obstore.get_async(self._bucket, name))
            return bytes(await bucket_call(answer.bytes_async()))
        except FileNotFoundError:
            return None

    async def put_mark(self, content: bytes, name: str = MARK) -> None:
        await bucket_call(obstore.put_async(self._bucket, name, content))

    async def objects(self) -> AsyncIterator[str]:
        with bucket_errors():
            async for page in obstore.list(self._bucket, prefix=OBJECTS):
                for meta in page:
                    name = meta["path"].rpartition("/")[2]
                    if SHA256.fullmatch(name):
                        yield name


async def _chunks(file: int, size: int) -> AsyncIterator[bytes]:
    for start in range(0, size, SEND_CHUNK_BYTES):
        yield await asyncio.to_thread(os.pread, file, min(SEND_CHUNK_BYTES, size - start), start)


def object_path(sha256: str) -> str:
    return "/".join(object_segments(sha256))
