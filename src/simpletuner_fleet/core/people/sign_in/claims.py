"""Checks what a signed token must say before it is trusted.

The signature was checked before; the time is handed in.
"""

import hmac
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.errors import NotVouchedFor
from simpletuner_fleet.core.people.sign_in.providers import PROXY, Provider, ProxyIdentity

MAX_SUBJECT_CHARS = 255
MAX_GROUPS = 2_000
MAX_CLAIM_CHARS = 512
LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
LOGOUT_TYPES = ("logout+jwt", "jwt", "")
FURTHER_NAMES = ("preferred_username", "name", "email")
LOGOUT_TOKEN_LIFE_S = 600.0

Claims = Mapping[str, Any]


class Person(Struct, frozen=True, kw_only=True):
    """Identifies somebody as a provider vouches for them, by issuer and subject together and by nothing else."""

    issuer: str
    subject: str
    name: str
    """How they would like to be called; it says nothing about who they are."""
    groups: frozenset[str] = frozenset()
    sid: str = ""
    """The provider's name for this session, by which it may end it."""
    id_token: str = ""


class LogoutOrder(Struct, frozen=True, kw_only=True):
    subject: str
    sid: str
    token_id: str
    expires_at: float


def check_issued(claims: Claims, *, issuer: str, audience: str, now: float, leeway_s: float) -> None:
    """Raises NotVouchedFor unless exactly this issuer has issued it for us, and it is valid now."""
    if claims.get("iss") != issuer:
        raise NotVouchedFor("The token was issued by somebody else.")
    meant_for = claims.get("aud")
    audiences = [meant_for] if isinstance(meant_for, str) else meant_for
    if not isinstance(audiences, list) or audience not in audiences:
        raise NotVouchedFor("The token was issued for somebody else.")
    if len(audiences) > 1 and claims.get("azp") != audience:
        raise NotVouchedFor("The token was issued for several, and not to us.")
    expires, issued, begins = (_seconds(claims, name) for name in ("exp", "iat", "nbf"))
    if expires is None or now > expires + leeway_s:
        raise NotVouchedFor("The token has expired.")
    if any(at is not None and at > now + leeway_s for at in (issued, begins)):
        raise NotVouchedFor("The token is from the future: the clocks of server and provider differ.")


def check_id_token(claims: Claims, provider: Provider, nonce: str, now: float) -> None:
    check_issued(
        claims, issuer=provider.issuer, audience=provider.client_id, now=now, leeway_s=provider.leeway_s
    )
    if claims.get("azp", provider.client_id) != provider.client_id:
        raise NotVouchedFor("The token was issued to somebody else.")
    said = claims.get("nonce")
    if not isinstance(said, str) or not hmac.compare_digest(said.encode(), nonce.encode()):
        raise NotVouchedFor("The token answers another log-in.")
    if _seconds(claims, "iat") is None:
        raise NotVouchedFor("The token does not say when it was issued.")
    subject_of(claims, provider.subject_claim)


def subject_of(claims: Claims, claim: str = "sub") -> str:
    subject = claims.get(claim)
    if (
        not isinstance(subject, str)
        or not 1 <= len(subject) <= MAX_SUBJECT_CHARS
        or not subject.isprintable()
    ):
        raise NotVouchedFor("The token does not say of whom it speaks.")
    return subject


def groups_of(claims: Claims, claim: str) -> frozenset[str] | None:
    """Returns the groups; None if the token says nothing of groups.

    A name with dots is tried as it is, else as a path: `realm_access.roles`.
    """
    listed: Any = claims.get(claim)
    if listed is None and "." in claim:
        listed = claims
        for part in claim.split("."):
            listed = listed.get(part) if isinstance(listed, Mapping) else None
    if listed is None:
        return None
    named = [listed] if isinstance(listed, str) else listed
    if not isinstance(named, list) or len(named) > MAX_GROUPS:
        raise NotVouchedFor(f"The token's '{claim}' is no list of at most {MAX_GROUPS} groups.")
    return frozenset(one for one in named if isinstance(one, str) and len(one) <= MAX_CLAIM_CHARS)


def person_of(claims: Claims, provider: Provider, groups: Collection[str], id_token: str) -> Person:
    sid = claims.get("sid")
    return Person(
        issuer=provider.issuer,
        subject=subject_of(claims, provider.subject_claim),
        name=_wanted_name(claims, provider.name_claim),
        groups=frozenset(groups),
        sid=sid if isinstance(sid, str) and len(sid) <= MAX_SUBJECT_CHARS else "",
        id_token=id_token,
    )


def person_by_proxy(headers: Mapping[str, str], proxy: ProxyIdentity) -> Person:
    """Reads the headers of a trusted proxy; those of anybody else were removed before."""
    subject = headers.get(proxy.user_header, "")
    name = headers.get(proxy.name_header, "") if proxy.name_header else ""
    groups = headers.get(proxy.groups_header, "") if proxy.groups_header else ""
    named = [one.strip() for one in groups.split(",")]
    return Person(
        issuer=PROXY,
        subject=subject_of({"sub": subject}),
        name=name.strip() or subject,
        groups=frozenset(one for one in named[:MAX_GROUPS] if one and len(one) <= MAX_CLAIM_CHARS),
    )


def logout_order(claims: Claims, provider: Provider, now: float) -> LogoutOrder:
    """Reads a logout token (OpenID Connect Back-Channel Logout 1.0, section 2.6)."""
    check_issued(
        claims, issuer=provider.issuer, audience=provider.client_id, now=now, leeway_s=provider.leeway_s
    )
    events, token_id, issued = claims.get("events"), claims.get("jti"), _seconds(claims, "iat")
    if not isinstance(events, Mapping) or LOGOUT_EVENT not in events or "nonce" in claims:
        raise NotVouchedFor("This is no logout token.")
    if not isinstance(token_id, str) or not 1 <= len(token_id) <= MAX_CLAIM_CHARS or issued is None:
        raise NotVouchedFor("The logout token has no jti or no iat.")
    if now > issued + LOGOUT_TOKEN_LIFE_S + provider.leeway_s:
        raise NotVouchedFor("The logout token is too old.")
    sid = claims.get("sid")
    if sid is not None and not isinstance(sid, str):
        raise NotVouchedFor("The logout token's sid is no text.")
    is_named = provider.subject_claim in claims
    subject = subject_of(claims, provider.subject_claim) if is_named or not sid else ""
    until = issued + LOGOUT_TOKEN_LIFE_S + 2 * provider.leeway_s
    return LogoutOrder(subject=subject, sid=sid or "", token_id=token_id, expires_at=until)


def fits(claims: Claims, wanted: Mapping[str, str]) -> bool:
    """Tells whether each named claim is present and matches its glob; without a named claim nothing fits."""
    return bool(wanted) and all(
        isinstance(claims.get(name), str) and fnmatchcase(claims[name], pattern)
        for name, pattern in wanted.items()
    )


def _wanted_name(claims: Claims, claim: str) -> str:
    for name in (claim, *FURTHER_NAMES):
        said = claims.get(name)
        if isinstance(said, str) and said.strip() and said.isprintable():
            return said.strip()
    return subject_of(claims)


def _seconds(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        raise NotVouchedFor(f"The token's '{name}' is no time.")
    return float(value)
