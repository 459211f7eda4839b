"""Follows a log-in through the provider: begun in one browser, ended in the same one, once.

The server stores nothing of one that has not come back: what it must know again is sealed in the browser's cookie, and
what must stay secret is derived from the state with a key that never leaves this process. So a million log-ins that
are begun use no memory.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.errors import SignInLost

LIFE_S = 600.0
MOST_USED = 100_000
MAX_FOLLOWING_CHARS = 1_500


class Begun(Struct, frozen=True, kw_only=True):
    state: str
    nonce: str
    challenge: str
    """The SHA-256 of the verifier, as PKCE wants it."""
    cookie: str


class Returned(Struct, frozen=True, kw_only=True):
    nonce: str
    verifier: str
    following: str


class _Sealed(Struct, frozen=True):
    state: str
    provider: str
    following: str
    expires_at: float


class Journeys:
    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._key = secrets.token_bytes(32)
        self._used: dict[str, float] = {}

    def begin(self, provider_id: str, following: str) -> Begun:
        state = secrets.token_urlsafe(32)
        if len(following) > MAX_FOLLOWING_CHARS:
            following = "/"
        sealed = _Sealed(state, provider_id, following, self._now() + LIFE_S)
        body = _base64(msgspec.json.encode(sealed))
        challenge = _base64(hashlib.sha256(self._derived("verifier", state).encode()).digest())
        return Begun(
            state=state,
            nonce=self._derived("nonce", state),
            challenge=challenge,
            cookie=f"{body}.{self._derived('cookie', body)}",
        )

    def finish(self, provider_id: str, state: str, cookie: str) -> Returned:
        """Checks that the log-in began in this browser, and marks it as used, whatever comes of it."""
        body, _, seal = cookie.partition(".")
        if not hmac.compare_digest(seal.encode(), self._derived("cookie", body).encode()):
            raise SignInLost
        try:
            journey = msgspec.json.decode(
                base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=_Sealed
            )
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            raise SignInLost from None
        if not hmac.compare_digest(journey.state.encode(), state.encode()) or journey.provider != provider_id:
            raise SignInLost
        if self._now() >= journey.expires_at or state in self._used:
            raise SignInLost
        self._note_used(state, journey.expires_at)
        return Returned(
            nonce=self._derived("nonce", state),
            verifier=self._derived("verifier", state),
            following=journey.following,
        )

    def _note_used(self, state: str, expires_at: float) -> None:
        now = self._now()
        while self._used and (len(self._used) >= MOST_USED or next(iter(self._used.values())) <= now):
            del self._used[next(iter(self._used))]
        self._used[state] = expires_at

    def _derived(self, purpose: str, text: str) -> str:
        return _base64(hmac.digest(self._key, f"{purpose}:{text}".encode(), "sha256"))


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")
