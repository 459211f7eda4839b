"""Keeps growing blobs in a bucket that cannot append: whole segments are sent there, the newest waits in a folder.

A blob is a row of segments, each named by the offset at which it begins. The last one grows in the folder; once it is
large enough, or nothing has come for ten minutes, it is sent to the bucket in the background and leaves the folder.
While the bucket is away, segments wait in the folder.
"""

import asyncio
import logging
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress

import obstore
from msgspec import Struct
from obstore.store import S3Store

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.s3_calls import bucket_call, bucket_errors
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.keyed_locks import KeyedLocks

log = logging.getLogger(__name__)

SEGMENTS = "log-segments"
SEGMENT_BYTES = 8 * 1024 * 1024
IDLE_S = 600.0
LOOK_EVERY_S = 5.0
RETRY_S = 30.0
BLOCK_BYTES = 1024 * 1024
BLOCKS_KEPT = 32
MOST_FAILURES = 3
"""So many logs in a row that cannot be sent say that the bucket is away."""
GROWING_KNOWN = 4096
"""Blobs whose segments are remembered."""


class Segment(Struct):
    start: int
    size: int
    in_bucket: bool
    has_copy: bool = False
    """The bucket may have bytes of it that do not count: a put was begun, and had no answer or came too early."""

    @property
    def end(self) -> int:
        return self.start + self.size


class GrowingBlob(Struct):
    """Describes a blob as far as it is known here: its segments, and when it last grew."""

    segments: list[Segment]
    touched_at: float

    @property
    def size(self) -> int:
        return self.segments[-1].end if self.segments else 0

    @property
    def waits(self) -> bool:
        return any(not segment.in_bucket for segment in self.segments)


class S3Logs:
    """Keeps blobs that grow in an S3 bucket.

    It implements `append`, `read`, `size`, `truncate`, `delete` and `names` of ports.Blobs.
    """

    def __init__(
        self,
        bucket: S3Store,
        staging: FolderBlobs,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        idle_s: float = IDLE_S,
        look_every_s: float = LOOK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket = bucket
        self._staging = staging
        self._segment_bytes, self._idle_s, self._look_every_s = segment_bytes, idle_s, look_every_s
        self._clock = clock
        self._growing: OrderedDict[str, GrowingBlob] = OrderedDict()
        self._blocks: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()
        self._locks = KeyedLocks()
        self._sending = KeyedLocks()
        """Taken before `_locks`. A blob grows and is read while a segment of it is sent, but nothing is taken back:
        what arrives in the bucket after a deletion would bring the deleted bytes back."""
        self._not_sent: set[str] = set()
        """Those that could not be sent the last time: all others come before them."""
        self._sender: asyncio.Task[None] | None = None
        self._left_over = True
        """Segments of a process before this one may still be in the folder."""

    async def append(self, key: str, offset: int, data: bytes) -> int:
        async with self._locks.holding(key):
            blob = await self._blob(key)
            if offset > blob.size or offset + len(data) <= blob.size:
                return blob.size
            fresh = data[blob.size - offset :]
            last = blob.segments[-1] if blob.segments else None
            if last is None or last.in_bucket or last.size >= self._segment_bytes:
                last = Segment(blob.size, 0, in_bucket=False)
                blob.segments.append(last)
            last.size = await self._staging.append(_place(key, last.start), last.size, fresh)
            blob.touched_at = self._clock()
            self._send_in_background()
            return blob.size

    async def size(self, key: str) -> int:
        async with self._locks.holding(key):
            return (await self._blob(key)).size

    async def read(self, key: str, start: int, length: int) -> bytes:
        """Returns what there is of it: shorter at the end, empty beyond it or where there is no blob."""
        async with self._locks.holding(key):
            blob = await self._blob(key)
            return await self._read_segments(key, blob, start, min(start + length, blob.size))

    async def _read_segments(self, key: str, blob: GrowingBlob, start: int, end: int) -> bytes:
        parts: list[bytes] = []
        at = start
        while at < end:
            segment = blob.segments[bisect_right(blob.segments, at, key=lambda one: one.start) - 1]
            length = min(end, segment.end) - at
            if segment.in_bucket:
                part = await self._from_bucket(key, segment, at - segment.start, length)
            else:
                part = await self._staging.read(_place(key, segment.start), at - segment.start, length)
            if not part:
                break
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    async def truncate(self, key: str, size: int) -> None:
        async with self._sending.holding(key), self._locks.holding(key):
            blob = await self._blob(key)
            while blob.segments and blob.size > size:
                await self._shorten(key, blob, max(size, blob.segments[-1].start))
                if blob.segments[-1].size == 0:
                    blob.segments.pop()
            self._forget_blocks(key)

    async def _shorten(self, key: str, blob: GrowingBlob, end: int) -> None:
        """Moves what is left of the last segment back to the folder, because it may grow."""
        segment = blob.segments[-1]
        place = _place(key, segment.start)
        if segment.in_bucket:
            remaining = await self._read_segments(key, blob, segment.start, end)
            await self._staging.append(place, 0, remaining)
        if segment.in_bucket or segment.has_copy:
            await self._delete_from_bucket(place)
        segment.in_bucket = segment.has_copy = False
        segment.size = end - segment.start
        await self._staging.truncate(place, segment.size)

    async def delete(self, key: str) -> None:
        """Deletes all segments that there are, also those after one that is missing.

        A segment that the bucket refuses to delete keeps no other; why it did is raised in the end.
        """
        refusals: list[StoreUnavailable] = []
        async with self._sending.holding(key), self._locks.holding(key):
            starts = {start for start, _ in await self._listed(key)}
            known = self._growing.pop(key, None)
            starts |= (
                {one.start for one in known.segments if one.in_bucket or one.has_copy} if known else set()
            )
            self._forget_blocks(key)
            for start in sorted(starts):
                try:
                    await self._delete_from_bucket(_place(key, start))
                except StoreUnavailable as refusal:
                    refusals.append(refusal)
            await self._staging.delete(_folder(key))
        if refusals:
            raise refusals[0]

    async def names(self, prefix: str) -> list[str]:
        """Returns the names of the blobs right beneath the prefix, in the bucket and in the folder."""
        listed = await bucket_call(obstore.list_with_delimiter_async(self._bucket, prefix=_folder(prefix)))
        sent = [path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"]]
        return sorted({*sent, *await self._staging.names(_folder(prefix))})

    async def _delete_from_bucket(self, place: str) -> None:
        with suppress(FileNotFoundError):
            await bucket_call(obstore.delete_async(self._bucket, place))

    def _forget_blocks(self, key: str) -> None:
        for cached in [one for one in self._blocks if one[0] == key]:
            del self._blocks[cached]

    async def _blob(self, key: str) -> GrowingBlob:
        blob = self._growing.pop(key, None) or GrowingBlob(await self._find_segments(key), self._clock())
        self._growing[key] = blob
        if self._left_over or blob.waits:
            self._send_in_background()
        for old in list(self._growing)[: max(0, len(self._growing) - GROWING_KNOWN)]:
            if not self._growing[old].waits:
                del self._growing[old]
        return blob

    async def _find_segments(self, key: str) -> list[Segment]:
        """Returns what the bucket and the folder have. A segment that is in both was sent and then not removed."""
        by_start: dict[int, Segment] = {}
        for name in filter(str.isdecimal, await self._staging.names(_folder(key))):
            place = f"{_folder(key)}/{name}"
            by_start[int(name)] = Segment(int(name), await self._staging.size(place), in_bucket=False)
        for start, size in await self._listed(key):
            here = by_start.get(start)
            if here is None or here.size <= size:
                by_start[start] = Segment(start, size, in_bucket=True)
                if here:
                    await self._staging.delete(_place(key, start))
            else:
                here.has_copy = True
        segments: list[Segment] = []
        for start in sorted(by_start):
            if start != (segments[-1].end if segments else 0):
                break
            segments.append(by_start[start])
        return segments

    async def _listed(self, key: str) -> list[tuple[int, int]]:
        with bucket_errors():
            return [
                (int(name), int(meta["size"]))
                async for page in obstore.list(self._bucket, prefix=_folder(key))
                for meta in page
                if (name := meta["path"].rpartition("/")[2]).isdecimal()
            ]

    async def _from_bucket(self, key: str, segment: Segment, at: int, length: int) -> bytes:
        """Fetches whole blocks and keeps some of them: looking through a log reads many small pieces."""
        number = at // BLOCK_BYTES
        cached = (key, segment.start, number)
        block = self._blocks.pop(cached, None)
        if block is None:
            start = number * BLOCK_BYTES
            call = obstore.get_range_async(
                self._bucket,
                _place(key, segment.start),
                start=start,
                length=min(BLOCK_BYTES, segment.size - start),
            )
            block = bytes(await bucket_call(call))
        self._blocks[cached] = block
        if len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        inside = at - number * BLOCK_BYTES
        return block[inside : inside + length]

    # Sending.

    def _send_in_background(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._keep_sending())

    async def _keep_sending(self) -> None:
        """Calls `send_due_once` until nothing waits in the folder."""
        while True:
            try:
                await self.send_due_once()
                pause_s = self._look_every_s
            except (StoreUnavailable, OSError) as error:
                log.warning("logs wait for the S3 storage: %s", error)
                pause_s = RETRY_S
            if not any(blob.waits for blob in self._growing.values()):
                return
            await asyncio.sleep(pause_s)

    async def send_due_once(self) -> None:
        """Sends what is due. A log that cannot be sent keeps no other from it; why it could not is raised in the end."""
        if self._left_over:
            await self._load_left_over()
            self._left_over = False
        self._not_sent &= self._growing.keys()
        failures: list[Exception] = []
        for key, blob in sorted(self._growing.items(), key=lambda one: one[0] in self._not_sent):
            try:
                for segment in list(blob.segments):
                    if not segment.in_bucket:
                        await self._send_if_due(key, blob, segment)
            except (StoreUnavailable, OSError) as failure:
                self._not_sent.add(key)
                failures.append(failure)
                if len(failures) == MOST_FAILURES:
                    break
            else:
                self._not_sent.discard(key)
        if failures:
            raise failures[0]

    async def _send_if_due(self, key: str, blob: GrowingBlob, segment: Segment) -> None:
        place = _place(key, segment.start)
        async with self._sending.holding(key):
            async with self._locks.holding(key):
                if not self._waits_still(key, blob, segment) or not self._is_due(blob, segment):
                    return
                data = await self._staging.read(place, 0, segment.size)
                segment.has_copy = True
            await bucket_call(obstore.put_async(self._bucket, place, data))
            async with self._locks.holding(key):
                if segment.size == len(data):  # else it has grown, and is sent again
                    await self._staging.delete(place)
                    segment.in_bucket = (
                        True  # last: whoever looks without our locks must find it done, not under way
                    )

    def _waits_still(self, key: str, blob: GrowingBlob, segment: Segment) -> bool:
        """Tells whether it was neither sent nor taken back while we waited for our turn."""
        is_part = self._growing.get(key) is blob and any(one is segment for one in blob.segments)
        return is_part and not segment.in_bucket

    def _is_due(self, blob: GrowingBlob, segment: Segment) -> bool:
        over = segment is not blob.segments[-1]
        idle = self._clock() - blob.touched_at >= self._idle_s
        return over or segment.size >= self._segment_bytes or idle

    async def _load_left_over(self) -> None:
        """Learns what a process before this one has left in the folder."""
        for folder in await self._staging.names(SEGMENTS):
            for name in await self._staging.names(f"{SEGMENTS}/{folder}"):
                key = f"{folder}/{name}"
                async with self._locks.holding(key):
                    await self._blob(key)


def _folder(key: str) -> str:
    return f"{SEGMENTS}/{key}"


def _place(key: str, start: int) -> str:
    return f"{_folder(key)}/{start:015d}"
