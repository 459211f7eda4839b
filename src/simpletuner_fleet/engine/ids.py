"""Names nobody can guess, and tokens that only this orchestrator can make."""

import hashlib
import hmac
import secrets

from simpletuner_fleet.core.people import tokens

ID_CHARS = 12
RANDOM_BYTES = 4096
MIN_SECRET_BYTES = 32
REMEMBERED_TOKENS = 256


class RandomIds:
    def __init__(self, secret: bytes) -> None:
        if len(secret) < MIN_SECRET_BYTES:
            raise ValueError(f"the secret has at least {MIN_SECRET_BYTES} bytes")
        self._secret = secret
        self._derived: dict[tuple[str, str], str] = {}
        self._digits = ""
        self._used = 0

    def new(self, prefix: str) -> str:
        begin = self._used
        end = self._used = begin + ID_CHARS
        if end > len(self._digits):
            self._digits = tokens.random_digits(secrets.token_bytes(RANDOM_BYTES))
            begin, end = 0, ID_CHARS
            self._used = end
        return f"{prefix}_{self._digits[begin:end]}"

    def token(self, prefix: str) -> str:
        return tokens.make(prefix, secrets.token_bytes(tokens.SECRET_BYTES))

    def derived_token(self, prefix: str, of: str) -> str:
        """An offer's is made when it is decided and again when it is sent, moments later: the newest are remembered."""
        known = self._derived.get((prefix, of))
        if known is None:
            proof = hmac.digest(self._secret, f"{prefix}:{of}".encode(), hashlib.sha256)
            known = self._derived[prefix, of] = tokens.make(prefix, proof)
            if len(self._derived) > REMEMBERED_TOKENS:
                del self._derived[next(iter(self._derived))]
        return known
