"""Receives content for any owner: says what is missing, takes parts from any byte, verifies the whole, then owns it.

A job uploads checkpoints and artifacts, a person uploads datasets. They differ in where their unfinished parts are,
who may go on, how much space there is, and which row makes the content theirs: that is an `UploadOwner`. All else is
here, once.

Content is proven by uploading it: knowing a SHA-256 gives nobody the bytes and makes nobody their owner. The blobs
share equal bytes underneath.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from simpletuner_fleet.core.errors import DigestMismatch, Invalid, ObjectsMissing, StoreUnavailable
from simpletuner_fleet.core.free_space import Use
from simpletuner_fleet.core.training import checkpoint
from simpletuner_fleet.protocol.uploads import ObjectAsked, ObjectMissing, PartAnswer
from simpletuner_fleet.storage.storage import Storage
from simpletuner_fleet.storage.uploads.direct import DirectStorage

MISSING_TOLD = 1000


class UploadOwner(Protocol):
    """An upload owner is the job or person that content is uploaded for.

    Every method raises where this owner may not upload any more.
    """

    @property
    def folder(self) -> str:
        """Returns the folder of its unfinished parts, apart from all others: nobody can spoil another's upload."""
        ...

    @property
    def direct_job(self) -> str | None:
        """Returns the job whose files may also go straight to the storage; None where there is none."""
        ...

    async def stored(self, shas: Collection[str]) -> Mapping[str, int]:
        """Returns size by SHA-256 of those of `shas` that the owner has whole."""
        ...

    async def check_room(self, more_bytes: int) -> None:
        """Raises QuotaExceeded where so many more bytes do not fit beside what is stored."""
        ...

    async def check_turn(self) -> None:
        """Raises where the owner's turn is over; called before each part but the first."""
        ...

    async def own(self, sha256: str, size: int) -> None:
        """Makes the whole and verified content its own. It checks again whether the owner may do so."""
        ...


async def missing(
    storage: Storage, owner: UploadOwner, objects: Sequence[ObjectAsked]
) -> list[ObjectMissing]:
    """Returns what is not stored yet, and from which byte on each upload continues."""
    for at, one in enumerate(objects):
        checkpoint.check_object(one.sha256, one.size, storage.fleet.policy, f"$.objects[{at}]")
    sizes = {one.sha256: one.size for one in objects}
    stored = await owner.stored(sizes)
    absent = {sha256: size for sha256, size in sizes.items() if sha256 not in stored}
    await owner.check_room(sum(absent.values()))
    if absent:
        storage.space.check(Use.UPLOADS, 0)
    unfinished = await storage.blobs.part_sizes(owner.folder) if absent else {}
    return [ObjectMissing(sha256=sha256, offset=unfinished.get(sha256, 0)) for sha256 in absent]


async def put_part(
    storage: Storage, owner: UploadOwner, sha256: str, size: int, offset: int, pieces: AsyncIterator[bytes]
) -> PartAnswer:
    """Takes the bytes from `offset` on.

    The part that makes the content whole is answered once the content is verified and owned.
    """
    checkpoint.check_object(sha256, size, storage.fleet.policy)
    if offset > size:
        raise Invalid("offset is past the end.", path="$.offset")
    whole = PartAnswer(next_offset=size, complete=True)
    if await _begin_or_go_on(storage, owner, sha256, size, offset):
        return whole
    storage.space.check(Use.UPLOADS, 0)
    try:
        reached = await _write_pieces(storage, part_key(owner, sha256), size, offset, pieces)
        storage.unfinished.note(owner.folder, sha256, reached)
        if reached < offset and await _was_finished(storage, owner, sha256):
            return whole
        if reached < size:
            return PartAnswer(next_offset=reached, complete=False)
        await _seal(storage, owner, sha256, size)
    except BaseException:
        storage.unfinished.forget(owner.folder)
        raise
    storage.unfinished.note(owner.folder, sha256, 0)
    return whole


def part_key(owner: UploadOwner, sha256: str) -> str:
    return f"{owner.folder}/{sha256}"


def check_all_stored(stored: Mapping[str, int], contents: Iterable[tuple[str, int]]) -> None:
    """Raises ObjectsMissing, naming those contents (SHA-256 and size) that are not stored with that size."""
    absent = sorted({sha256 for sha256, size in contents if stored.get(sha256) != size})
    if absent:
        raise ObjectsMissing(
            f"Not all files are stored yet; missing: {len(absent)}.",
            missing=absent[:MISSING_TOLD],
            count=len(absent),
        )


async def _begin_or_go_on(storage: Storage, owner: UploadOwner, sha256: str, size: int, offset: int) -> bool:
    """Returns whether nothing has to be sent, since the content is stored already."""
    if offset:
        await owner.check_turn()
        return False
    if sha256 in await owner.stored([sha256]):
        return True
    await owner.check_room(size + await other_parts_bytes(storage, owner, sha256))
    return False


async def other_parts_bytes(storage: Storage, owner: UploadOwner, sha256: str) -> int:
    """Returns how many bytes of the owner's other files are under way, here and straight to the storage."""
    here = await storage.unfinished.bytes_beside(owner.folder, sha256)
    direct = storage.direct_in_use
    if direct is None or owner.direct_job is None:
        return here
    return here + await direct.bytes_under_way(owner.direct_job, sha256)


async def _write_pieces(
    storage: Storage, key: str, size: int, offset: int, pieces: AsyncIterator[bytes]
) -> int:
    """Writes one piece while the next arrives; what was written stays, however the request ends."""
    at, reached, writing = offset, 0, None
    try:
        async for piece in pieces:
            if writing:
                reached = await writing
                if reached < at:
                    return reached
            if at + len(piece) > size:
                raise Invalid("offset and length extend past the end.", path="$.offset")
            storage.space.check(Use.UPLOADS, len(piece))
            writing = asyncio.ensure_future(storage.blobs.put_part(key, at, piece))
            at += len(piece)
    finally:
        if writing:
            reached = await writing
    return reached


async def _was_finished(storage: Storage, owner: UploadOwner, sha256: str) -> bool:
    """Returns whether the content is stored by now.

    Another request may have carried the same part: if that one is just finishing, this waits for its end.
    """
    async with storage.locks.holding(sha256):
        return sha256 in await owner.stored([sha256])


async def _seal(storage: Storage, owner: UploadOwner, sha256: str, size: int) -> None:
    """Seals the content and makes it the owner's.

    The lock spans both steps: in between, the sweep would find an object without an owner.
    """
    key = part_key(owner, sha256)
    async with storage.locks.holding(sha256):
        if sha256 in await owner.stored([sha256]):
            await storage.blobs.delete(key)
            return
        if not await storage.blobs.seal(key, sha256, size):
            raise DigestMismatch(sha256)
        await owner.own(sha256, size)
        if storage.direct_in_use and owner.direct_job:
            await _let_go_of_staged(storage.direct_in_use, owner.direct_job, sha256)


async def _let_go_of_staged(direct: DirectStorage, job_id: str, sha256: str) -> None:
    """Drops what may have been sent straight to the storage before. If that is away, the sweep drops it later."""
    with suppress(StoreUnavailable):
        await direct.forget(job_id, sha256)
