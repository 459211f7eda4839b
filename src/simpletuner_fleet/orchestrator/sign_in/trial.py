"""Tests a provider: asks all that a log-in would ask it, up to the person, and trusts nothing cached."""

from msgspec import Struct

from simpletuner_fleet.core.errors import ProviderUnusable
from simpletuner_fleet.core.people.sign_in.providers import (
    Described,
    ProviderDocument,
    described,
    may_be_asked,
    signatures_of,
)
from simpletuner_fleet.core.people.sign_in.trial import (
    Trial,
    TrialCheck,
    TrialName,
    TrialState,
    client_check,
    document_checks,
    failed,
    for_want_of,
    good,
    keys_check,
    not_made,
    redirect_check,
)
from simpletuner_fleet.orchestrator.sign_in.journeys import Begun
from simpletuner_fleet.orchestrator.sign_in.keys import KEY_KINDS, public_keys
from simpletuner_fleet.orchestrator.sign_in.provider import OpenIdProvider, decoded

NO_CODE = "this-is-a-test-and-no-code"


class _Refusal(Struct, frozen=True):
    error: str = ""


async def try_provider(provider: OpenIdProvider, begun: Begun, redirect_uri: str, now: float) -> Trial:
    """Runs the test. `provider` is made for this alone; `begun` is a log-in that nobody will finish."""
    try:
        document = await provider.document()
    except ProviderUnusable as error:
        later = (for_want_of(name) for name in TrialName if name is not TrialName.DISCOVERY)
        first = failed(TrialName.DISCOVERY, error)
        return Trial(at=now, redirect_uri=redirect_uri, checks=(first, *later))
    checks = [good(TrialName.DISCOVERY, "It describes itself at the well-known address.")]
    checks += document_checks(document, provider.settings)
    if any(check.state is TrialState.BAD for check in checks if check.name in BEFORE_ASKING):
        checks += [for_want_of(name) for name in (TrialName.KEYS, TrialName.REDIRECT, TrialName.CLIENT)]
    else:
        settings = provider.settings
        about = described(document, settings.issuer, settings.hosts, for_people=True)
        checks.append(await _keys(provider, document))
        checks.append(await _redirect(provider, about, begun, redirect_uri))
        checks.append(await _client(provider, about, redirect_uri))
    return Trial(at=now, redirect_uri=redirect_uri, checks=tuple(checks))


BEFORE_ASKING = frozenset({TrialName.ISSUER, TrialName.PLACES, TrialName.SIGNATURES, TrialName.PKCE})


async def _keys(provider: OpenIdProvider, document: ProviderDocument) -> TrialCheck:
    signatures = signatures_of(document)
    kinds = tuple({KEY_KINDS[one[:2]] for one in signatures})
    try:
        keys = public_keys(await provider.keys(document.jwks_uri))
    except ProviderUnusable as error:
        return failed(TrialName.KEYS, error)
    fitting = sum(isinstance(key, kinds) for _, key in keys)
    return keys_check(len(keys), signatures, fitting)


async def _redirect(
    provider: OpenIdProvider, about: Described, begun: Begun, redirect_uri: str
) -> TrialCheck:
    settings = provider.settings
    if not may_be_asked(about.authorize, settings.issuer, settings.hosts):
        return not_made(
            TrialName.REDIRECT,
            "The address for log-ins lies at a host that this server does not ask.",
            "Register the address at the provider, then log in once.",
        )
    try:
        status, location = await provider.asker.led_to(
            provider.address_at(about.authorize, begun, redirect_uri, prompt="none")
        )
    except ProviderUnusable as error:
        return failed(TrialName.REDIRECT, error)
    return redirect_check(status, location, redirect_uri)


async def _client(provider: OpenIdProvider, about: Described, redirect_uri: str) -> TrialCheck:
    try:
        status, body = await provider.show_code(about, NO_CODE, NO_CODE * 2, redirect_uri)
    except ProviderUnusable as error:
        return failed(TrialName.CLIENT, error)
    try:
        error_code = decoded(body, _Refusal).error
    except ProviderUnusable:
        error_code = ""
    return client_check(status, error_code)
