"""Makes ids that nobody can guess, and tokens that only this orchestrator can make."""

import hmac
import secrets
import time
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256

from simpletuner_fleet.core.people import tokens

RANDOM_CHARS = 7
TIME_CHARS = 5
TICKS_PER_S = 20
"""An id begins with the time at which it was made, so that what is made together lies together in the database's
indexes: with random ids every row of a batch changed a page of its own in each of them."""
RANDOM_BYTES = 4096
MIN_SECRET_BYTES = 32
REMEMBERED_TOKENS = 256
BLOCK_BYTES = 64
"""Of SHA-256."""


class RandomIds:
    def __init__(self, secret: bytes, now: Callable[[], float] = time.time) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret has at least {MIN_SECRET_BYTES} bytes")
        key = (secret if len(secret) <= BLOCK_BYTES else sha256(secret).digest()).ljust(BLOCK_BYTES, b"\0")
        self._inner, self._outer = key.translate(hmac.trans_36), key.translate(hmac.trans_5C)
        """The two blocks of HMAC-SHA256 that hold the key: to make them anew takes longer than all the rest of it."""
        self._derived = lru_cache(maxsize=REMEMBERED_TOKENS)(self._derive)
        self._now = now
        self._tick = -1
        self._time_digits = ""
        self._digits = ""
        self._made = self._used = 0
        """So many of the digits there are, and so many were given out."""

    def new(self, prefix: str) -> str:
        tick = int(self._now() * TICKS_PER_S)
        if tick != self._tick:
            self._tick, self._time_digits = tick, tokens.base62(tick, TIME_CHARS)
        begin = self._used
        end = self._used = begin + RANDOM_CHARS
        if end > self._made:
            self._digits = tokens.random_digits(secrets.token_bytes(RANDOM_BYTES))
            self._made = len(self._digits)
            begin, end = 0, RANDOM_CHARS
            self._used = end
        return f"{prefix}_{self._time_digits}{self._digits[begin:end]}"

    def token(self, prefix: str) -> str:
        return tokens.make(prefix, secrets.token_bytes(tokens.SECRET_BYTES))

    def derived_token(self, prefix: str, of: str) -> str:
        """Returns a token derived from a name, and caches the newest ones.

        An offer's token is made when it is decided and again when it is sent, moments later.
        """
        return self._derived(prefix, of)

    def _derive(self, prefix: str, of: str) -> str:
        inner = sha256(self._inner + f"{prefix}:{of}".encode()).digest()
        return tokens.make(prefix, sha256(self._outer + inner).digest())
