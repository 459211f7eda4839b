"""Manages API tokens, and tells callers who they are."""

from typing import Any

from msgspec import Struct

from simpletuner_fleet.http.api.admin.sessions import require_fresh_login
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import ANY_USER, Call, Route
from simpletuner_fleet.http.views.records import TokensView, TokenView, token_view
from simpletuner_fleet.orchestrator.people import api_tokens
from simpletuner_fleet.orchestrator.people.api_tokens import CreateToken

TAGS = ("administration",)
PERMISSION = "admin.tokens"


class CreateTokenBody(CreateToken, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Describes the API token to create. A misspelt choice is an error, not ignored."""


class WhoAmI(Struct, kw_only=True):
    id: str
    name: str
    kind: str
    permissions: list[str]


async def whoami(call: Call[None]) -> WhoAmI:
    caller = call.principal
    return WhoAmI(id=caller.id, name=caller.name, kind=caller.kind, permissions=list(caller.permissions))


async def list_tokens(call: Call[None]) -> TokensView:
    tokens = await deps_of(call).fleet.read(lambda view: view.api_tokens())
    return TokensView([token_view(token) for token in tokens])


async def create_token(call: Call[CreateTokenBody]) -> TokenView:
    """Creates a token. Nobody gives away permissions that they do not hold."""
    require_fresh_login(call)
    for permission in call.body.permissions:
        call.require(permission)
    token, secret = await api_tokens.create_token(deps_of(call).fleet, call.body, call.actor, acts_for(call))
    return token_view(token, secret)


def acts_for(call: Call[Any]) -> str:
    """Returns the user that a new token acts for: the caller, or the user that the caller's own token acts for."""
    caller = call.principal
    return caller.id if caller.kind == "user" else caller.owner_id


async def revoke_token(call: Call[None]) -> TokenView:
    deps = deps_of(call)
    token = await api_tokens.revoke_token(deps.fleet, call.path["id"], call.actor)
    deps.revoke([token.token_hash])
    return token_view(token)


ROUTES = [
    Route(
        "GET",
        "/api/whoami",
        whoami,
        ANY_USER,
        answer=WhoAmI,
        summary="Who the caller is and what they may do",
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/admin/tokens",
        list_tokens,
        PERMISSION,
        answer=TokensView,
        summary="API tokens, without their secrets",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/admin/tokens",
        create_token,
        PERMISSION,
        CreateTokenBody,
        TokenView,
        "Create an API token with a set of permissions",
        status=201,
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/admin/tokens/{id}",
        revoke_token,
        PERMISSION,
        answer=TokenView,
        summary="Revoke an API token",
        tags=TAGS,
    ),
]
