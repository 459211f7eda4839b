"""Declares a storage that workers may write to and read from by themselves, with links signed for one call each."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct


class SignedLink(Struct, frozen=True, kw_only=True):
    """Opens one call to the storage for a short time.

    Whoever has the link may make the call: it is in no log, no audit entry and no error.
    """

    url: str
    headers: dict[str, str]
    """What must be sent along, and is signed with it."""


class StagedPart(Struct, frozen=True, kw_only=True):
    """Describes a part of a staged file that has arrived."""

    number: int
    size: int
    etag: str
    sha256: str = ""
    """As the storage writes it; '' where it keeps none."""


class StagedFile(Struct, frozen=True, kw_only=True):
    """Identifies a file that is on its way into the storage, apart from everything that counts."""

    key: str
    upload_id: str = ""
    """'' once its parts were put together."""


class DirectBlobs(Protocol):
    """Lets workers write to and read from a storage by themselves, with signed links.

    Keys are made by us. Whatever is staged under one counts for nothing until `store` has made an object of it.
    """

    async def begin(self, key: str) -> StagedFile: ...
    def staged(self, prefix: str) -> AsyncIterator[StagedFile]:
        """Yields all that lies beneath it, whole or in parts."""
        ...

    async def parts(self, file: StagedFile) -> list[StagedPart]: ...
    def part_link(self, file: StagedFile, number: int, size: int, sha256: str) -> SignedLink:
        """Returns a link for exactly so many bytes with this digest, as this part of this upload."""
        ...

    async def put_together(self, file: StagedFile, parts: Sequence[StagedPart]) -> StagedFile: ...
    async def store(self, file: StagedFile, sha256: str, size: int) -> bool:
        """Makes the object of what is staged, if the storage itself finds this digest and size; durable on return."""
        ...

    async def drop(self, file: StagedFile) -> None:
        """Takes back what is staged, in parts or whole. Doing so again is harmless."""
        ...

    def object_link(self, sha256: str, name: str, *, own: bool = False) -> str:
        """Returns a link to read an object as a file saved under this name; `own` is for where this orchestrator is."""
        ...

    def mark_link(self) -> str:
        """Returns a link for reading the storage's mark: whoever tries it learns whether the storage can be reached."""
        ...

    def trial_link(self, size: int, sha256: str) -> SignedLink:
        """Returns a link for sending exactly this to a key that nothing reads, the same for all who try it."""
        ...

    async def prove(self) -> None:
        """Raises StoreUnavailable unless it does all of the above."""
        ...

    async def close(self) -> None: ...
