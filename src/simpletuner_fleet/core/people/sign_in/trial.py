"""Tests a provider and describes the result of each check; a check that was not made is never good."""

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from simpletuner_fleet.core.errors import ProviderUnusable
from simpletuner_fleet.core.people.sign_in.providers import (
    Provider,
    ProviderDocument,
    check_issuer,
    check_pkce,
    check_places,
    signatures_of,
)

KNOWN_CLIENT = "invalid_grant"
"""What a provider says to a client that it knows and to a code that it does not."""
UNKNOWN_CLIENT = frozenset({"invalid_client", "unauthorized_client"})
REDIRECTS = frozenset({302, 303, 307})
REFUSALS = frozenset({400, 401, 403, 404})


class TrialName(StrEnum):
    DISCOVERY = "discovery"
    ISSUER = "issuer"
    PLACES = "places"
    SIGNATURES = "signatures"
    KEYS = "keys"
    PKCE = "pkce"
    SCOPES = "scopes"
    REDIRECT = "redirect"
    CLIENT = "client"


class TrialState(StrEnum):
    GOOD = "good"
    BAD = "bad"
    NOT_MADE = "not_made"


class TrialCheck(Struct, frozen=True, kw_only=True):
    name: TrialName
    state: TrialState
    said: str
    next: str = ""


class Trial(Struct, frozen=True, kw_only=True):
    at: float
    redirect_uri: str
    checks: tuple[TrialCheck, ...]

    @property
    def state(self) -> TrialState:
        """Returns the result of the test: good only where every check was made and is good."""
        states = {check.state for check in self.checks}
        if TrialState.BAD in states:
            return TrialState.BAD
        return TrialState.NOT_MADE if TrialState.NOT_MADE in states else TrialState.GOOD


def good(name: TrialName, said: str) -> TrialCheck:
    return TrialCheck(name=name, state=TrialState.GOOD, said=said)


def bad(name: TrialName, said: str, next_step: str = "") -> TrialCheck:
    return TrialCheck(name=name, state=TrialState.BAD, said=said, next=next_step)


def failed(name: TrialName, error: ProviderUnusable) -> TrialCheck:
    """Returns a failed check with advice for whoever sets the provider up, not for whoever logs in."""
    own = error.next if error.next and error.next != ProviderUnusable.next_step else ""
    return bad(name, error.detail, own or "Look at the provider and at the address, then test again.")


def not_made(name: TrialName, said: str, next_step: str = "") -> TrialCheck:
    return TrialCheck(name=name, state=TrialState.NOT_MADE, said=said, next=next_step)


def for_want_of(name: TrialName) -> TrialCheck:
    return not_made(
        name, "Not looked at, because an earlier check failed.", "Mend that first, then test again."
    )


def document_checks(document: ProviderDocument, provider: Provider) -> list[TrialCheck]:
    return [
        _checked(
            TrialName.ISSUER,
            lambda: check_issuer(document, provider.issuer),
            "The provider calls itself exactly what stands here.",
        ),
        _checked(
            TrialName.PLACES,
            lambda: check_places(document, provider.issuer, provider.hosts),
            "The addresses for log-ins, tokens and keys are safe, and this server may ask them.",
        ),
        _checked(
            TrialName.SIGNATURES,
            lambda: signatures_of(document),
            "It signs in a way that can be trusted.",
        ),
        _pkce(document),
        _scopes(document, provider),
    ]


def _checked(name: TrialName, check: Callable[[], object], said: str) -> TrialCheck:
    try:
        check()
    except ProviderUnusable as error:
        return failed(name, error)
    return good(name, said)


def _pkce(document: ProviderDocument) -> TrialCheck:
    if document.code_challenge_methods_supported is None:
        return not_made(
            TrialName.PKCE,
            "The provider does not say whether it supports PKCE with S256.",
            "It is sent with every log-in; look into the provider's own documentation.",
        )
    return _checked(TrialName.PKCE, lambda: check_pkce(document), "It supports PKCE with S256.")


def _scopes(document: ProviderDocument, provider: Provider) -> TrialCheck:
    if document.scopes_supported is None:
        return not_made(
            TrialName.SCOPES,
            "The provider does not say which scopes it knows.",
            "Whether groups come is seen at the first log-in.",
        )
    unknown = [one for one in provider.scopes if one not in document.scopes_supported]
    if unknown:
        return bad(
            TrialName.SCOPES,
            f"The provider does not know the scopes {', '.join(unknown)[:200]}.",
            "Leave them out, or add them at the provider.",
        )
    return good(TrialName.SCOPES, "It knows every scope that is asked for.")


def keys_check(published: int, signatures: tuple[str, ...], fitting: int) -> TrialCheck:
    if not fitting:
        return bad(
            TrialName.KEYS,
            f"Keys that it publishes: {published}. None fits the ways in which it signs.",
            f"The provider must publish a key for {', '.join(signatures)}.",
        )
    return good(TrialName.KEYS, f"{fitting} of its keys can be used.")


def redirect_check(status: int, location: str, redirect_uri: str) -> TrialCheck:
    """Checks the answer to a log-in without a page (`prompt=none`) of an unknown person: it must redirect back."""
    if status in REDIRECTS and location.startswith(f"{redirect_uri}?"):
        return good(TrialName.REDIRECT, "It knows this client, and leads people back to this address.")
    if status in REFUSALS:
        return bad(
            TrialName.REDIRECT,
            f"It refuses to begin a log-in: it answers {status}.",
            "Register this address at the provider as a redirect address of this client, to the letter.",
        )
    return not_made(
        TrialName.REDIRECT,
        "Whether it leads people back to this address cannot be told without logging in.",
        "Register the address at the provider, then log in once.",
    )


def client_check(status: int, error: str) -> TrialCheck:
    """Checks the client by the answer to a code that the provider never issued: it checks the client first."""
    if error == KNOWN_CLIENT:
        return good(TrialName.CLIENT, "It accepts the client id and the secret.")
    if error in UNKNOWN_CLIENT or status == 401:
        return bad(
            TrialName.CLIENT,
            "It does not accept the client id and the secret.",
            "Copy both from the provider again.",
        )
    return not_made(
        TrialName.CLIENT,
        f"It answers {status}, which does not say whether it accepts the client id and the secret.",
        "Log in once.",
    )
