"""Makes and checks tokens: their form, their checksum, and the hash that is all that is stored of them."""

import hashlib
import zlib

BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_BYTES = 32
SECRET_CHARS = 43
CHECKSUM_CHARS = 6
WORKER, API, UPLOAD = "wt", "st", "ut"
SESSION, ONE_TIME = "ss", "ok"
JOIN = "jt"
"""For one machine, once: it is exchanged for a worker's."""


_PAIRS = [high + low for high in BASE62 for low in BASE62]
_EVEN = 256 - 256 % len(BASE62)
"""Bytes below this make every digit equally likely; the others are left out."""
_DIGIT_OF_BYTE = bytes(ord(BASE62[byte % len(BASE62)]) for byte in range(256))
_UNEVEN = bytes(range(_EVEN, 256))


def base62(number: int, width: int) -> str:
    """Returns the last `width` digits.

    It converts ten digits at a time, then five, since dividing long numbers is slow.
    """
    digits = ""
    while len(digits) < width:
        number, ten = divmod(number, 62**10)
        digits = f"{_five_digits(ten // 62**5)}{_five_digits(ten % 62**5)}{digits}"
    return digits[-width:]


def _five_digits(number: int) -> str:
    return f"{BASE62[number // 62**4]}{_PAIRS[number // 62**2 % 62**2]}{_PAIRS[number % 62**2]}"


def random_digits(random_bytes: bytes) -> str:
    """Returns about as many digits as there are bytes, each as random as they are."""
    return random_bytes.translate(_DIGIT_OF_BYTE, _UNEVEN).decode("ascii")


def checksum(text: str) -> str:
    return base62(zlib.crc32(text.encode()), CHECKSUM_CHARS)


def make(prefix: str, random_bytes: bytes) -> str:
    if len(random_bytes) != SECRET_BYTES:
        raise ValueError(f"a token needs {SECRET_BYTES} random bytes")
    body = f"{prefix}_{base62(int.from_bytes(random_bytes), SECRET_CHARS)}"
    return body + checksum(body)


def upload_token_name(attempt_id: str, epoch: int) -> str:
    """Returns what an attempt's upload token is derived from."""
    return f"upload:{attempt_id}:{epoch}"


def hashed(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def complaint(token: str, prefix: str) -> str | None:
    """Returns why this cannot be a token of ours, or None; it does not check whether the token is valid."""
    if token and token.split() != [token]:
        return "the token holds whitespace: copy it again without spaces or line breaks"
    if not token.startswith(f"{prefix}_"):
        return f"a token of this kind begins with '{prefix}_'"
    body, check = token[:-CHECKSUM_CHARS], token[-CHECKSUM_CHARS:]
    whole = token.isascii() and len(token) == len(prefix) + 1 + SECRET_CHARS + CHECKSUM_CHARS
    if not whole or checksum(body) != check:
        return "the token was cut or mistyped (its checksum does not fit): copy it again"
    return None
