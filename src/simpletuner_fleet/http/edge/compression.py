"""Compresses answers where it is worth the time and the caller can read them."""

import zlib

from simpletuner_fleet.http.edge.exchange import Exchange, RawHeaders

HEADERS: RawHeaders = [(b"content-encoding", b"gzip"), (b"vary", b"accept-encoding")]
WORTH_IT_BYTES = 1024
"""Smaller ones fit a packet or two anyway: no answer to a worker pays for a look at its headers."""
LEVEL = 3
GZIP_WINDOW = 31
READING = ("GET", "HEAD")
KINDS = ("text/", "application/json", "image/svg+xml")


def is_worth_it(exchange: Exchange, body: bytes, content_type: str) -> bool:
    """Allows only answers to GET, and to the HEAD that says how long such a one would be.

    Another answer may hold a secret, which its compressed length would reveal.
    """
    return (
        len(body) >= WORTH_IT_BYTES
        and exchange.method in READING
        and content_type.startswith(KINDS)
        and "gzip" in exchange.headers.get("accept-encoding", "")
    )


def gzipped(body: bytes) -> bytes:
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP_WINDOW)
    return packer.compress(body) + packer.flush()
