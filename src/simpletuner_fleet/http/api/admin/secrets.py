"""Manages secrets for trainers. A value comes in and is never shown again."""

from msgspec import UNSET, Struct, UnsetType

from simpletuner_fleet.core.bounds import FreeText, Name
from simpletuner_fleet.core.people.stored_secret import StoredSecret
from simpletuner_fleet.http.api.admin.sessions import require_fresh_login
from simpletuner_fleet.http.api.deps import deps_of, visibility_scope_of
from simpletuner_fleet.http.api.ownership import writer_of
from simpletuner_fleet.http.edge.routes import KIB, Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator import keyring

TAGS = ("secrets",)
MAX_BODY_BYTES = 128 * KIB


class SecretValue(Struct, kw_only=True, forbid_unknown_fields=True):
    value: FreeText
    users: list[Name] | UnsetType = UNSET
    """The users and tokens, by name, whose jobs may have it beside its owner's; none: everybody's. Left out: as before."""


class SecretView(Struct, kw_only=True):
    name: str
    version: int
    created_at: str | None
    created_by: str
    owner: str
    """The id of who may replace it; empty: administrators alone."""
    users: list[str]
    """The ids of those whose jobs may have it beside its owner's; none: everybody's."""


class SecretsView(Struct):
    secrets: list[SecretView]
    unreadable: list[str]
    """The names of those that are stored and cannot be read; only those are told of them who may see all secrets."""


async def list_secrets(call: Call[None]) -> SecretsView:
    stored = await keyring.list_secrets(deps_of(call).fleet)
    scope = visibility_scope_of(call)
    ids = (*scope.ids, *scope.teams)
    return SecretsView(
        [_view(name, one) for name, one in stored.secrets.items() if scope.above or one.is_for(*ids)],
        unreadable=stored.unreadable if scope.above else [],
    )


async def save_secret(call: Call[SecretValue]) -> SecretView:
    require_fresh_login(call)
    name = call.path["name"]
    users = None if call.body.users is UNSET else call.body.users
    saved = await keyring.save_secret(deps_of(call).fleet, name, call.body.value, writer_of(call), users)
    return _view(name, saved)


async def delete_secret(call: Call[None]) -> Done:
    require_fresh_login(call)
    await keyring.delete_secret(deps_of(call).fleet, call.path["name"], writer_of(call))
    return Done(id=call.path["name"])


def _view(name: str, secret: StoredSecret) -> SecretView:
    return SecretView(
        name=name,
        version=secret.version,
        created_at=rfc3339(secret.created_at),
        created_by=secret.created_by,
        owner=secret.owner,
        users=list(secret.users),
    )


ROUTES = [
    Route(
        "GET",
        "/api/secrets",
        list_secrets,
        "secrets.read",
        answer=SecretsView,
        summary="Names and ages of the stored secrets, never their values",
        tags=TAGS,
    ),
    Route(
        "PUT",
        "/api/secrets/{name}",
        save_secret,
        "secrets.write",
        SecretValue,
        SecretView,
        "Store a secret, or replace it for the attempts to come",
        max_body_bytes=MAX_BODY_BYTES,
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/secrets/{name}",
        delete_secret,
        "secrets.write",
        answer=Done,
        summary="Delete a secret",
        tags=TAGS,
    ),
]
