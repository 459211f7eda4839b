"""Declares what else the shell provides: bytes, time, ids, secrets, streams and signatures."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from simpletuner_fleet.protocol.messages import AuditHead, JobSubmit


class SignedHeads(Protocol):
    """Provides signed heads of the audit log, and proofs that later ones hold earlier ones."""

    newest: AuditHead | None

    def is_ours(self, head: AuditHead) -> bool: ...

    async def proofs(self, heads: Sequence[AuditHead], newest: AuditHead) -> list[list[str] | None]: ...


MARK = "fleet.json"
"""What says whose a storage is, at its root."""


class Blobs(Protocol):
    """Stores bytes that are too many for the database.

    Keys are ids joined by '/', made by us, never taken from a user.
    """

    async def append(self, key: str, offset: int, data: bytes) -> int:
        """Writes at `offset` if the blob is at least that long; returns the blob's length. Repeats are harmless."""
        ...

    async def read(self, key: str, start: int, length: int) -> bytes: ...
    async def size(self, key: str) -> int: ...
    async def truncate(self, key: str, size: int) -> None:
        """Takes back what was appended beyond `size`; a shorter blob stays as it is, and none is left of size 0."""
        ...

    async def delete(self, prefix: str) -> None: ...
    async def names(self, prefix: str) -> list[str]:
        """Returns the next segments of all keys beneath this one."""
        ...

    async def put_part(self, key: str, offset: int, data: bytes) -> int:
        """Does as `append`, for the parts of an object that is on its way."""
        ...

    async def part_sizes(self, prefix: str) -> dict[str, int]:
        """Returns the sizes of all parts right beneath this key, by their names."""
        ...

    async def seal(self, key: str, sha256: str, size: int) -> bool:
        """Makes the parts an object if they are what they should be; drops them if not. It is durable on return."""
        ...

    async def object_size(self, sha256: str) -> int | None:
        """Returns its size; None where there is no such object."""
        ...

    async def read_object(self, sha256: str, start: int, length: int) -> bytes: ...
    async def delete_object(self, sha256: str) -> None: ...
    async def mark(self, name: str = MARK) -> bytes | None:
        """Returns a small file that lies at the storage's root, beside everything else; None where it is not there."""
        ...

    async def put_mark(self, content: bytes, name: str = MARK) -> None:
        """Writes it whole or not at all, durable on return, and the same for every server that shares the storage."""
        ...

    def objects(self) -> AsyncIterator[str]:
        """Yields the SHA-256 of everything stored, in no order. Walks all of it: for the sweep only."""
        ...


class Clock(Protocol):
    def now(self) -> float:
        """Returns seconds since 1970 that never jump: wall time is read once, then carried by the monotonic clock."""
        ...


class Ids(Protocol):
    def new(self, prefix: str) -> str: ...
    def token(self, prefix: str) -> str: ...
    def derived_token(self, prefix: str, of: str) -> str:
        """Returns a token that only this orchestrator can make, always the same, so that it need not be stored."""
        ...


class Vault(Protocol):
    """Seals values for the store, each for one name, with a key that is not in the store."""

    def seal(self, name: str, value: str) -> str: ...
    def unseal(self, name: str, sealed: str) -> str | None:
        """Returns what was sealed; None where it was not sealed with this key and for this name."""
        ...


class Streams(Protocol):
    """Notifies the open streams to workers, consoles and CLIs. Every call is a hint: the truth is in the store."""

    def wake(self, worker_id: str) -> None:
        """Makes whoever holds this worker's stream look again at what it should send."""
        ...

    def offer(self, worker_id: str, offers: Sequence[JobSubmit]) -> None:
        """Makes whoever holds this worker's stream send these, or look again."""
        ...

    def cut(self, worker_id: str, why: str) -> None: ...
    def publish(self, event: str, data: dict[str, Any]) -> None:
        """Sends a thin event to every console and CLI that watches."""
        ...
