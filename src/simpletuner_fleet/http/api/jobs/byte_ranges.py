"""Answers with stored files: whole, from an offset, or a range of them."""

import re
from collections.abc import AsyncGenerator
from urllib.parse import quote

from msgspec import Struct

from simpletuner_fleet.http.edge.exchange import RawHeaders
from simpletuner_fleet.ports import Blobs

READ_BYTES = 1024 * 1024
RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


class Cut(OSError):
    """The storage no longer holds what the database says."""


class Span(Struct, frozen=True):
    start: int
    end: int
    """The offset of the byte after the last."""


def asked_span(header: str | None, size: int) -> Span | None:
    """Returns the range that is asked for; None for the whole file. An empty span cannot be satisfied."""
    match = RANGE.fullmatch(header.strip()) if header else None
    if not match or not (match[1] or match[2]):
        return None
    if not match[1]:
        return Span(max(0, size - int(match[2])), size)
    end = min(size, int(match[2]) + 1) if match[2] else size
    return Span(int(match[1]), end) if int(match[1]) < end else Span(0, 0)


async def read_through(blobs: Blobs, sha256: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
    at = start
    while at < end:
        data = await blobs.read_object(sha256, at, min(READ_BYTES, end - at))
        if not data:
            raise Cut(f"object {sha256} ends at {at} instead of {end}")
        at += len(data)
        yield data


def octet_headers(length: int) -> RawHeaders:
    return [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % length),
        (b"cache-control", b"no-store"),
    ]


def attachment(name: str) -> bytes:
    """Returns a header that keeps a browser from showing the file: a trainer may have written a page with a script."""
    plain = name if PLAIN_NAME.fullmatch(name) else "file"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}".encode()
