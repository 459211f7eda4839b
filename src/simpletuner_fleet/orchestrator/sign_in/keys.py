"""Keeps the keys a provider signs with, and checks whether a token was signed with one of them."""

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey, import_key

from simpletuner_fleet.core.errors import NotVouchedFor, ProviderUnusable

PublicKey = RSAKey | ECKey | OKPKey
KEYS_LIFE_S = 3_600.0
"""A key that the provider has taken back is believed for so long at most."""
REFETCH_AFTER_S = 30.0
"""A token with an unknown key makes us look again, but not more often than this: anybody can make up such tokens."""
MAX_TOKEN_CHARS = 32_768
MAX_KEYS = 100
LEAST_RSA_BITS = 2048
KEY_KINDS: dict[str, type[PublicKey]] = {"RS": RSAKey, "PS": RSAKey, "ES": ECKey, "Ed": OKPKey}
"""By how the name of a signature begins."""


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str | None = None
    typ: str = ""
    crit: msgspec.Raw | None = None
    b64: bool = True


class _KeyDocument(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


class SignedClaims(msgspec.Struct, frozen=True):
    claims: dict[str, Any]
    type: str
    """As its header says, in lower case."""


class KeyRing:
    def __init__(self, fetch: Callable[[], Awaitable[bytes]], monotonic: Callable[[], float]) -> None:
        self._fetch = fetch
        self._monotonic = monotonic
        self._keys: list[tuple[str | None, PublicKey]] = []
        self._fetched_at: float | None = None
        self._asked_at: float | None = None
        self._fetching = asyncio.Lock()

    async def read(self, token: str, signatures: Collection[str]) -> SignedClaims:
        """Returns the token's claims if one of the provider's keys signed it with one of these algorithms."""
        header = _header_of(token)
        if header.alg not in signatures or header.crit is not None or not header.b64:
            raise NotVouchedFor("The token is signed in a way that is not accepted.")
        key = await self._key_for(header)
        try:
            signed = jws.deserialize_compact(token, key, algorithms=[header.alg])
            claims = msgspec.json.decode(signed.payload, type=dict[str, Any])
        except (JoseError, msgspec.MsgspecError, ValueError, TypeError, UnicodeDecodeError):
            raise NotVouchedFor("The token's signature is wrong.") from None
        return SignedClaims(claims, header.typ.lower().removeprefix("application/"))

    async def _key_for(self, header: _Header) -> PublicKey:
        if self._is_old():
            await self._fetch_again(self._fetched_at)
        key = self._known(header)
        if key is None and not self._braked():
            await self._fetch_again(self._fetched_at)
            key = self._known(header)
        if key is None:
            raise NotVouchedFor("The token is signed with a key that the provider does not have.")
        return key

    def _known(self, header: _Header) -> PublicKey | None:
        kind = KEY_KINDS[header.alg[:2]]
        fitting = [key for kid, key in self._keys if isinstance(key, kind) and header.kid in (None, kid)]
        return fitting[0] if len(fitting) == 1 or (fitting and header.kid is not None) else None

    def _is_old(self) -> bool:
        return self._fetched_at is None or self._monotonic() >= self._fetched_at + KEYS_LIFE_S

    def _braked(self) -> bool:
        return self._asked_at is not None and self._monotonic() < self._asked_at + REFETCH_AFTER_S

    async def _fetch_again(self, known: float | None) -> None:
        """Fetches the keys once for all who wait. `known` is when those were fetched that did not suffice."""
        async with self._fetching:
            if self._fetched_at != known:
                return
            self._asked_at = self._monotonic()
            self._keys = public_keys(await self._fetch())
            self._fetched_at = self._monotonic()


def public_keys(document: bytes) -> list[tuple[str | None, PublicKey]]:
    """Returns the usable keys.

    Others (of other kinds or uses, or too short) are left out: a shared secret would be a risk.
    """
    try:
        listed = msgspec.json.decode(document, type=_KeyDocument).keys[:MAX_KEYS]
    except (msgspec.MsgspecError, UnicodeError):
        raise ProviderUnusable("The provider's keys cannot be read.") from None
    usable: list[tuple[str | None, PublicKey]] = []
    for one in listed:
        if one.get("kty") not in ("RSA", "EC", "OKP") or one.get("use", "sig") != "sig" or _is_short(one):
            continue
        try:
            key = import_key({name: value for name, value in one.items() if name != "key_ops"})
        except (JoseError, ValueError, TypeError, KeyError):
            continue
        if isinstance(key, RSAKey | ECKey | OKPKey):
            kid = one.get("kid")
            usable.append((kid if isinstance(kid, str) else None, key))
    return usable


def _is_short(key: dict[str, Any]) -> bool:
    modulus = key.get("n", "")
    return key.get("kty") == "RSA" and (not isinstance(modulus, str) or len(modulus) * 6 < LEAST_RSA_BITS)


def _header_of(token: str) -> _Header:
    head, dot, _ = token.partition(".")
    if not dot or len(token) > MAX_TOKEN_CHARS or not token.isascii():
        raise NotVouchedFor("This is no signed token.")
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)), type=_Header)
    except (msgspec.MsgspecError, binascii.Error, ValueError):
        raise NotVouchedFor("This is no signed token.") from None
