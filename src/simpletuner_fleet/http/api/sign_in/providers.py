"""Logs in with a provider: lists providers, handles the browser's two steps, and takes the provider's logouts."""

from typing import Any
from urllib.parse import parse_qsl

from msgspec import Struct

from simpletuner_fleet.core.errors import Malformed, SignInFailed, SignInLost
from simpletuner_fleet.core.people.accounts import Session
from simpletuner_fleet.core.people.sign_in.claims import Person, person_by_proxy
from simpletuner_fleet.core.people.sign_in.providers import PROXY
from simpletuner_fleet.http.access.limits import address_key
from simpletuner_fleet.http.access.sessions import (
    no_sign_in_cookie,
    session_cookie,
    session_secret,
    sign_in_cookie,
    sign_in_secret,
)
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import KIB, PUBLIC, Call, Reply, Route
from simpletuner_fleet.orchestrator.people.logins import LoggedIn
from simpletuner_fleet.orchestrator.sign_in.arriving import arrive, end_at_the_providers_word
from simpletuner_fleet.orchestrator.sign_in.following import IdentitySource

TAGS = ("account",)
SEE_OTHER = 303
MAX_FORM_BYTES = 64 * KIB


class ProviderView(Struct, kw_only=True):
    id: str
    title: str
    login_path: str
    """Where a browser begins."""


class ProvidersView(Struct):
    providers: list[ProviderView]


async def list_providers(call: Call[None]) -> ProvidersView:
    return ProvidersView(
        [
            ProviderView(id=one.id, title=one.title, login_path=f"/login/with/{one.id}")
            for one in deps_of(call).sign_in.ways(call.headers)
        ]
    )


async def begin(call: Call[Any], following: str) -> Reply:
    """Sends the browser to the provider. `following` is a checked path of ours to go to afterwards."""
    deps = deps_of(call)
    deps.sign_in_rate.spend(address_key(call.ip))
    proxy = deps.sign_in.proxy
    if call.path["provider"] == PROXY and proxy:
        arrival = await arrive_by(
            call, deps.sign_in.proxy_identity_source(proxy), person_by_proxy(call.headers, proxy)
        )
        return _leading_to(following, session_cookie(arrival.secret, call.secure))
    provider = deps.sign_in.provider(call.path["provider"])
    begun = deps.sign_in.journeys.begin(provider.journey, following)
    address = await provider.login_address(begun, _redirect_uri(call))
    return _leading_to(address, sign_in_cookie(begun.cookie, call.secure))


async def finish(call: Call[Any], *, code: str, state: str, error: str, issuer: str | None) -> Reply:
    """Logs the user in when the browser comes back from the provider."""
    deps = deps_of(call)
    deps.sign_in_rate.spend(address_key(call.ip))
    provider = deps.sign_in.provider(call.path["provider"])
    carried = sign_in_secret(call.headers.get("cookie"), call.secure)
    if not carried:
        raise SignInLost
    returned = deps.sign_in.journeys.finish(provider.journey, state, carried)
    await provider.check_sender(issuer)
    if error or not code:
        raise SignInFailed(f"The provider says: {_plain(error) or 'nothing'}.")
    person = await provider.person(code, returned, _redirect_uri(call), deps.fleet.clock.now())
    login = await arrive_by(call, deps.sign_in.identity_source(provider.settings, provider.stored), person)
    cookies = (session_cookie(login.secret, call.secure), no_sign_in_cookie(call.secure))
    return _leading_to(returned.following, *cookies)


async def arrive_by(call: Call[Any], source: IdentitySource, person: Person) -> LoggedIn:
    deps = deps_of(call)
    before = session_secret(call.headers.get("cookie"), call.secure)
    arrival = await arrive(deps.fleet, source, person, call.ip, before)
    deps.revoke(arrival.ended)
    if arrival.login is None:
        raise arrival.refused or SignInFailed
    return arrival.login


async def back_channel_logout(call: Call[bytes]) -> Reply:
    """Ends sessions when the provider says that somebody has logged out (OpenID Connect Back-Channel Logout 1.0)."""
    deps = deps_of(call)
    deps.sign_in_rate.spend(address_key(call.ip))
    provider = deps.sign_in.provider(call.path["provider"])
    form = dict(parse_qsl(call.body.decode("ascii", "replace"), max_num_fields=8))
    if "logout_token" not in form:
        raise Malformed("The form has no logout_token.")
    order = await provider.logout_order(form["logout_token"], deps.fleet.clock.now())
    with deps.sign_in.obey_once(provider.settings.id, order):
        ended = await end_at_the_providers_word(
            deps.fleet, provider.settings.id, provider.settings.issuer, order, call.ip
        )
    deps.revoke(ended)
    return Reply(body={}, headers={"cache-control": "no-store"})


async def logout_address(call: Call[Any], session: Session | None) -> str:
    """Returns where the browser of an ended session logs out of its provider; '' where there is nothing to do."""
    deps = deps_of(call)
    provider = deps.sign_in.provider_of(session.issuer) if session and session.issuer else None
    if provider is None or session is None:
        return ""
    return await provider.logout_address(session.id_token, f"{deps.base_url(call).rstrip('/')}/login")


def _redirect_uri(call: Call[Any]) -> str:
    return f"{deps_of(call).base_url(call).rstrip('/')}/login/back/{call.path['provider']}"


def _leading_to(address: str, *cookies: str) -> Reply:
    headers = {"location": address, "cache-control": "no-store", "referrer-policy": "no-referrer"}
    return Reply(body=b"", status=SEE_OTHER, headers=headers, cookies=cookies)


def _plain(error: str) -> str:
    """Returns the provider's error code; any other text comes from outside, and is not repeated."""
    return error if error.isascii() and error.replace("_", "").isalnum() and len(error) <= 64 else ""


ROUTES = [
    Route(
        "GET",
        "/api/login/providers",
        list_providers,
        PUBLIC,
        answer=ProvidersView,
        summary="The providers that one may log in with, beside a password",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/login/providers/{provider}/logout",
        back_channel_logout,
        PUBLIC,
        bytes,
        dict[str, str],
        "A provider says that somebody has logged out there (back-channel logout)",
        max_body_bytes=MAX_FORM_BYTES,
        tags=TAGS,
        form=True,
    ),
]
