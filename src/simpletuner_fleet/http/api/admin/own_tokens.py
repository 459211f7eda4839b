"""Lets everybody make tokens for themselves: never with more than they may do, and with less when they may do less."""

from typing import Any

from simpletuner_fleet.core.errors import no_such_token
from simpletuner_fleet.http.api.admin.logins import NotAUser
from simpletuner_fleet.http.api.admin.sessions import require_fresh_login
from simpletuner_fleet.http.api.admin.tokens import CreateTokenBody, acts_for
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import ANY_USER, Call, Route
from simpletuner_fleet.http.views.records import TokensView, TokenView, token_view
from simpletuner_fleet.orchestrator.people import api_tokens
from simpletuner_fleet.ports import ApiToken

TAGS = ("people",)


async def list_own(call: Call[None]) -> TokensView:
    return TokensView([token_view(token) for token in await _own(call)])


async def create_own(call: Call[CreateTokenBody]) -> TokenView:
    """Creates a token. One that a token makes ends with it at the latest: a short one would not be short else."""
    require_fresh_login(call)
    for permission in call.body.permissions:
        call.require(permission)
    deps, user_id = deps_of(call), _user(call)
    deps.sign_in_rate.spend(f"token {user_id}")
    token, secret = await api_tokens.create_token(
        deps.fleet, call.body, call.actor, user_id, call.principal.expires_at
    )
    return token_view(token, secret)


async def revoke_own(call: Call[None]) -> TokenView:
    deps, token_id = deps_of(call), call.path["id"]
    if all(token.id != token_id for token in await _own(call)):
        raise no_such_token(token_id)
    token = await api_tokens.revoke_token(deps.fleet, token_id, call.actor)
    deps.revoke([token.token_hash])
    return token_view(token)


async def _own(call: Call[Any]) -> list[ApiToken]:
    user_id = _user(call)
    return await deps_of(call).fleet.read(lambda view: view.api_tokens_of(user_id))


def _user(call: Call[Any]) -> str:
    user_id = acts_for(call)
    if not user_id:
        raise NotAUser
    return user_id


ROUTES = [
    Route(
        "GET",
        "/api/me/tokens",
        list_own,
        ANY_USER,
        answer=TokensView,
        summary="Your own API tokens",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/me/tokens",
        create_own,
        ANY_USER,
        CreateTokenBody,
        TokenView,
        "Make an API token for yourself, with no more permissions than you have",
        status=201,
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/me/tokens/{id}",
        revoke_own,
        ANY_USER,
        answer=TokenView,
        summary="Revoke an API token of yours",
        tags=TAGS,
    ),
]
