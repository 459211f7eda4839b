"""Creates and revokes API tokens, and sets the first admin's token."""

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import FreeText, Seconds
from simpletuner_fleet.core.errors import Conflict, Invalid, no_such_token
from simpletuner_fleet.core.events import ORCHESTRATOR, Actor, Event, EventType
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.permissions import EVERYTHING, PERMISSIONS, is_permission
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import ApiToken

ADMIN_NAME = "admin"
ADMIN_ID = "t_admin"


class CreateToken(Struct, frozen=True, kw_only=True):
    name: FreeText
    permissions: list[FreeText]
    expires_in_s: Seconds | None = None


async def set_admin_token(fleet: Fleet, token: str) -> None:
    """Sets the first admin's token, from the environment or the file beside the database."""
    hashed = tokens.hashed(token)

    def step(transaction: Transaction) -> None:
        known = transaction.tx.api_token(ADMIN_ID)
        if known and known.token_hash == hashed and known.revoked_at is None:
            return
        fresh = ApiToken(
            id=ADMIN_ID,
            name=ADMIN_NAME,
            token_hash=hashed,
            permissions=(EVERYTHING,),
            created_at=transaction.now,
        )
        if known:
            transaction.tx.save_api_token(fresh)
        else:
            transaction.tx.add_api_token(fresh)
        transaction.record(token_event(EventType.ADMIN_TOKEN_SET, fresh, ORCHESTRATOR))

    await fleet.act(step)


async def create_token(
    fleet: Fleet, request: CreateToken, actor: Actor, owner: str = "", ends_by: float | None = None
) -> tuple[ApiToken, str]:
    """Returns a new token and its secret.

    `owner` is the user that it will act for; by `ends_by` it ends, however long it was asked for.
    """
    if not 1 <= len(request.name) <= 100 or not request.name.isprintable():
        raise Invalid("A token name must have 1 to 100 printable characters.", path="$.name")
    for permission in request.permissions:
        if not is_permission(permission):
            raise Invalid(
                f"There is no permission '{permission}'; there are {', '.join(PERMISSIONS)}.",
                path="$.permissions",
            )
    if request.expires_in_s is not None and request.expires_in_s <= 0:
        raise Invalid("expires_in_s must be more than 0.", path="$.expires_in_s")
    secret = fleet.ids.token(tokens.API)

    def step(transaction: Transaction) -> ApiToken:
        asked = transaction.now + request.expires_in_s if request.expires_in_s else None
        token = ApiToken(
            id=transaction.ids.new("t"),
            name=request.name,
            token_hash=tokens.hashed(secret),
            permissions=tuple(dict.fromkeys(request.permissions)),
            created_at=transaction.now,
            expires_at=min((one for one in (asked, ends_by) if one is not None), default=None),
            owner=owner,
        )
        transaction.tx.add_api_token(token)
        transaction.record(token_event(EventType.TOKEN_CREATED, token, actor))
        return token

    return await fleet.act(step), secret


async def revoke_token(fleet: Fleet, token_id: str, actor: Actor, *, why: str = "") -> ApiToken:
    """Revokes a token. `why` is recorded in the audit log, where there is more to say than who did it."""
    if token_id == ADMIN_ID:
        raise Conflict(
            "The first admin's token cannot be revoked.",
            next_step="Change SIMPLETUNER_ADMIN_TOKEN or the file admin_token and restart the server.",
        )

    def step(transaction: Transaction) -> ApiToken:
        token = transaction.tx.api_token(token_id)
        if token is None:
            raise no_such_token(token_id)
        if token.revoked_at is None:
            token = replace(token, revoked_at=transaction.now)
            transaction.tx.save_api_token(token)
            transaction.record(token_event(EventType.TOKEN_REVOKED, token, actor, why=why))
        return token

    return await fleet.act(step)


def token_event(type_: EventType, token: ApiToken, actor: Actor, *, why: str = "") -> Event:
    said = {"name": token.name, "permissions": list(token.permissions), "owner": token.owner}
    return Event(
        type=type_,
        actor=actor,
        target_type="token",
        target_id=token.id,
        details={**said, "why": why} if why else said,
    )
