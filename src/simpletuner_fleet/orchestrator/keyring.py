"""Secrets for trainers: stored sealed, named by configs, opened only for the attempt that needs them."""

import msgspec

from simpletuner_fleet.core.configs.bundle import check_name
from simpletuner_fleet.core.errors import Conflict, Invalid, NotFound
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.stored_secrets import SECRET_PREFIX, StoredSecret, read_secret
from simpletuner_fleet.engine.transaction import Transaction

MAX_VALUE_BYTES = 16 * 1024


async def list_secrets(fleet: Fleet) -> dict[str, StoredSecret]:
    settings = await fleet.read(lambda view: view.settings_with_prefix(SECRET_PREFIX))
    return {key.removeprefix(SECRET_PREFIX): read_secret(text) for key, text in settings.items()}


async def save_secret(fleet: Fleet, name: str, value: str, actor: Actor) -> StoredSecret:
    """Attempts that run keep what they were given; the next one gets this."""
    check_name(name, "$.name", "secret's name")
    _check_value(value)
    if fleet.vault is None:
        raise Conflict("This orchestrator keeps no secrets.")
    sealed = fleet.vault.seal(name, value)

    def step(transaction: Transaction) -> StoredSecret:
        known = transaction.tx.setting(SECRET_PREFIX + name)
        fresh = StoredSecret(
            version=read_secret(known).version + 1 if known else 1,
            created_at=transaction.now,
            created_by=actor.id,
            sealed=sealed,
        )
        transaction.tx.put_setting(SECRET_PREFIX + name, msgspec.json.encode(fresh).decode())
        transaction.record(_event(EventType.SECRET_SAVED, name, actor, fresh.version))
        return fresh

    return await fleet.act(step)


async def delete_secret(fleet: Fleet, name: str, actor: Actor) -> None:
    def step(transaction: Transaction) -> None:
        known = transaction.tx.setting(SECRET_PREFIX + name)
        if known is None:
            raise NotFound(
                f"There is no secret '{name}'.", next_step="List them with 'simpletuner secrets list'."
            )
        transaction.tx.delete_setting(SECRET_PREFIX + name)
        transaction.record(_event(EventType.SECRET_DELETED, name, actor, read_secret(known).version))

    await fleet.act(step)


def _check_value(value: str) -> None:
    if not value or "\0" in value:
        raise Invalid("A secret has at least one character and no NUL byte.", path="$.value")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise Invalid("A secret is text.", path="$.value") from None
    if size > MAX_VALUE_BYTES:
        raise Invalid(f"A secret has at most {MAX_VALUE_BYTES // 1024} KiB.", path="$.value")


def _event(type_: EventType, name: str, actor: Actor, version: int) -> Event:
    return Event(type=type_, actor=actor, target_type="secret", target_id=name, details={"version": version})
