"""Seals secrets for the database with a key that is kept outside it."""

import base64
import binascii
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from simpletuner_fleet.core.errors import Conflict

KEY_BYTES = 32
NONCE_BYTES = 12


class KeyUnusable(Conflict):
    """The secrets key is not usable."""

    code = "secrets_key"


class KeyFile:
    """Keeps the file that holds the key for secrets.

    It is made when the first secret is stored, and never replaced, since what it has sealed needs it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes | None:
        try:
            key = bytes.fromhex(self._path.read_text("ascii").strip())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise KeyUnusable(
                f"{self._path} cannot be read or is damaged.",
                next_step="Restore it from a backup, or remove it and store every secret again.",
            )
        return key

    def make(self) -> bytes:
        descriptor, draft = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}-")
        with os.fdopen(descriptor, "w") as file:
            file.write(AESGCM.generate_key(KEY_BYTES * 8).hex() + "\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, self._path)
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
        made = self.read()
        assert made is not None
        return made


class SealedVault:
    """Implements ports.Vault by AES-256-GCM, with the secret's name bound to what is sealed."""

    def __init__(self, read: Callable[[], bytes | None], make: Callable[[], bytes]) -> None:
        self._read = read
        self._make = make

    @classmethod
    def at(cls, path: Path) -> "SealedVault":
        file = KeyFile(path)
        return cls(file.read, file.make)

    def seal(self, name: str, value: str) -> str:
        key = self._read() or self._make()
        nonce = os.urandom(NONCE_BYTES)
        return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, value.encode(), name.encode())).decode()

    def unseal(self, name: str, sealed: str) -> str | None:
        try:
            key, raw = self._read(), base64.b64decode(sealed, validate=True)
            if key is None:
                return None
            return AESGCM(key).decrypt(raw[:NONCE_BYTES], raw[NONCE_BYTES:], name.encode()).decode()
        except (KeyUnusable, InvalidTag, binascii.Error, ValueError):
            return None
