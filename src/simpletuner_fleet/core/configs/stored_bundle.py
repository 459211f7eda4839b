"""Reads configs from the form in which they are stored.

One config is often submitted many times, and every job's copy of it is read again when the job is offered: small ones are
remembered. Nobody changes what these functions return.
"""

from functools import lru_cache

import msgspec

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.errors import UnreadableRow

MOST_REMEMBERED = 64
MAX_REMEMBERED_BYTES = 64 * 1024

_decode = msgspec.json.Decoder(Bundle).decode
_remembered = lru_cache(maxsize=MOST_REMEMBERED)(_decode)
text_of = msgspec.json.Encoder().encode
"""Returns a bundle as it is stored with a job."""


def is_small(text: bytes) -> bool:
    """Tells whether the text is small enough to be kept in memory."""
    return len(text) <= MAX_REMEMBERED_BYTES


def read_stored(text: bytes) -> Bundle:
    """Raises UnreadableRow."""
    try:
        return _remembered(text) if is_small(text) else _decode(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableRow(f"The stored config cannot be read: {error}") from error
