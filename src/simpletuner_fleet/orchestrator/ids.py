"""Names nobody can guess, and tokens that only this orchestrator can make."""

import hashlib
import hmac
import secrets

from simpletuner_fleet.core import tokens

ID_CHARS = 12
ID_RANGE = 62**ID_CHARS
MIN_SECRET_BYTES = 32


class RandomIds:
    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret has at least {MIN_SECRET_BYTES} bytes")
        self._secret = secret

    def new(self, prefix: str) -> str:
        return f"{prefix}_{tokens.base62(secrets.randbelow(ID_RANGE), ID_CHARS)}"

    def token(self, prefix: str) -> str:
        return tokens.make(prefix, secrets.token_bytes(tokens.SECRET_BYTES))

    def derived_token(self, prefix: str, of: str) -> str:
        proof = hmac.digest(self._secret, f"{prefix}:{of}".encode(), hashlib.sha256)
        return tokens.make(prefix, proof)
