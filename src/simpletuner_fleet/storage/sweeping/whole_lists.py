"""Replaces lists in the storage by whole ones: whatever ends that midway, the list or the one before it is there.

A server may end at any moment, and on a full disk nothing can be written.
"""

from typing import TypeVar

import msgspec

from simpletuner_fleet.ports import Blobs

T = TypeVar("T")

READ_BYTES = 2**26
COPY = ".copy"
"""Added to the name of what is there, and whole, while the list itself is replaced."""


async def read_list(blobs: Blobs, key: str, kind: type[T]) -> T | None:
    """Returns None where there is none that can be read."""
    for name in (key, key + COPY):
        content = await blobs.read(name, 0, READ_BYTES)
        try:
            if content:
                return msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return None


async def replace_list(blobs: Blobs, key: str, content: bytes) -> None:
    """Writes the list; where the content is empty, there is none from then on."""
    await blobs.delete(key + COPY)
    if content:
        await blobs.append(key + COPY, 0, content)
    await blobs.delete(key)
    if content:
        await blobs.append(key, 0, content)
        await blobs.delete(key + COPY)
