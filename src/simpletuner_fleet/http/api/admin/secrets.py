"""Secrets for trainers. A value comes in and is never shown again."""

from msgspec import Struct

from simpletuner_fleet.core.bounds import FreeText
from simpletuner_fleet.engine.stored_secrets import StoredSecret
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.edge.routes import KIB, Call, Route, rfc3339
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.orchestrator import keyring

TAGS = ("secrets",)
MAX_BODY_BYTES = 128 * KIB


class SecretValue(Struct, kw_only=True, forbid_unknown_fields=True):
    value: FreeText


class SecretView(Struct, kw_only=True):
    name: str
    version: int
    created_at: str | None
    created_by: str


class SecretsView(Struct):
    secrets: list[SecretView]


async def list_secrets(call: Call[None]) -> SecretsView:
    secrets = await keyring.list_secrets(deps_of(call).fleet)
    return SecretsView([_view(name, secret) for name, secret in secrets.items()])


async def save_secret(call: Call[SecretValue]) -> SecretView:
    name = call.path["name"]
    return _view(name, await keyring.save_secret(deps_of(call).fleet, name, call.body.value, call.actor))


async def delete_secret(call: Call[None]) -> Done:
    await keyring.delete_secret(deps_of(call).fleet, call.path["name"], call.actor)
    return Done(id=call.path["name"])


def _view(name: str, secret: StoredSecret) -> SecretView:
    return SecretView(
        name=name,
        version=secret.version,
        created_at=rfc3339(secret.created_at),
        created_by=secret.created_by,
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
