"""Exchanges the OpenID token of a continuous integration's job for a short-lived token of ours."""

from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.people.sign_in.ci import admitted
from simpletuner_fleet.http.access.limits import address_key
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import KIB, PUBLIC, Call, Route
from simpletuner_fleet.http.views.fields import Time, view_of
from simpletuner_fleet.orchestrator.sign_in.exchanging import exchange

TAGS = ("account",)


class ExchangeBody(Struct, kw_only=True, forbid_unknown_fields=True):
    token: Annotated[str, Meta(max_length=32_768)]
    """As the continuous integration gave it to its job."""


class ExchangedView(Struct, kw_only=True):
    token: str
    name: str
    permissions: list[str]
    expires_at: Time


async def exchange_token(call: Call[ExchangeBody]) -> ExchangedView:
    deps = deps_of(call)
    deps.sign_in_rate.spend(address_key(call.ip))
    ci = deps.sign_in.ci(call.path["issuer"])
    claims = await deps.sign_in.read_ci(ci, call.body.token)
    admission = admitted(claims, ci, deps.fleet.clock.now())
    token, secret = await exchange(deps.fleet, ci, admission, call.ip)
    return view_of(ExchangedView, token, token=secret)


ROUTES = [
    Route(
        "POST",
        "/api/login/ci/{issuer}",
        exchange_token,
        PUBLIC,
        ExchangeBody,
        ExchangedView,
        "Exchange the OpenID token of a continuous integration's job for a short-lived API token",
        max_body_bytes=40 * KIB,
        tags=TAGS,
    ),
]
