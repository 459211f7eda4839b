"""Hashes passwords with Argon2id off the event loop, a few at a time, so that log-ins do not slow down the fleet."""

import asyncio
import os
from collections.abc import Callable
from typing import TypeVar

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from msgspec import Struct

from simpletuner_fleet.core.errors import TooManyRequests
from simpletuner_fleet.core.people.accounts import MAX_PASSWORD_CHARS, plain_password

T = TypeVar("T")
SALT_BYTES = 16
HASH_BYTES = 32
AT_ONCE = 2
MAX_WAITING = 32
TRY_AGAIN_S = 2.0


class Cost(Struct, frozen=True, kw_only=True):
    """Sets the cost of hashing one password with Argon2id.

    Its defaults are the first of the settings that OWASP recommends: one pass over 46 MiB.
    """

    memory_kib: int = 46 * 1024
    iterations: int = 1
    lanes: int = 1


class Passwords:
    def __init__(self, cost: Cost | None = None) -> None:
        self._cost = cost or Cost()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._waiting = 0
        self._decoy: str | None = None

    async def hashed(self, password: str) -> str:
        plain = plain_password(password).encode()
        return await self._in_turn(lambda: self._hash(plain))

    async def fits(self, password: str, known: str) -> bool:
        """Tells whether the password is right.

        It takes as long for an unknown user, so that the time reveals nothing.
        """
        decoy = self._decoy = self._decoy or await self.hashed(os.urandom(SALT_BYTES).hex())
        plain = plain_password(password)
        fits = await self._in_turn(lambda: _verified(plain.encode(), known or decoy))
        return fits and bool(known) and len(plain) <= MAX_PASSWORD_CHARS

    def outdated(self, known: str) -> bool:
        """Tells whether the hash was made at another cost than new ones are."""
        cost = self._cost
        return f"$m={cost.memory_kib},t={cost.iterations},p={cost.lanes}$" not in known

    def _hash(self, plain: bytes) -> str:
        return Argon2id(
            salt=os.urandom(SALT_BYTES),
            length=HASH_BYTES,
            iterations=self._cost.iterations,
            lanes=self._cost.lanes,
            memory_cost=self._cost.memory_kib,
        ).derive_phc_encoded(plain)

    async def _in_turn(self, work: Callable[[], T]) -> T:
        if self._waiting >= MAX_WAITING:
            raise TooManyRequests(TRY_AGAIN_S)
        self._waiting += 1
        try:
            async with self._turns:
                return await asyncio.to_thread(work)
        finally:
            self._waiting -= 1


def _verified(plain: bytes, known: str) -> bool:
    try:
        Argon2id.verify_phc_encoded(plain, known)
    except InvalidKey:
        return False
    return True
