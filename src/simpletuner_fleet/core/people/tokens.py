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


_EVEN = 256 - 256 % len(BASE62)
"""Bytes below this make every digit equally likely; the others are left out."""
_DIGIT_OF_BYTE = bytes(ord(BASE62[byte % len(BASE62)]) for byte in range(256))
_UNEVEN = bytes(range(_EVEN, 256))


def base62(number: int, width: int) -> str:
    """Returns the last `width` digits.

    It converts eight digits at a time, since dividing long numbers is slow. A table of pairs would do more at once, but
    between two tokens its entries leave the processor's cache, and to fetch them again takes longer than to divide.
    """
    digits = ""
    for _ in range(0, width, 8):
        number, eight = divmod(number, 62**8)
        high, low = eight // 62**4, eight % 62**4
        a, b, c, d = high // 62**2, high % 62**2, low // 62**2, low % 62**2
        digits = (
            f"{BASE62[a // 62]}{BASE62[a % 62]}{BASE62[b // 62]}{BASE62[b % 62]}"
            f"{BASE62[c // 62]}{BASE62[c % 62]}{BASE62[d // 62]}{BASE62[d % 62]}{digits}"
        )
    return digits[-width:]


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
