"""Lets administrators add, change, switch and delete providers, each act with its audit entry."""

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict, replace

from simpletuner_fleet.core.errors import Conflict, Invalid, NotFound
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.people.sign_in.providers import Provider, RoleRules, TeamGroups
from simpletuner_fleet.core.people.sign_in.stored import (
    MAX_PROVIDERS,
    PROVIDER_PREFIX,
    StoredProvider,
    checked_provider,
)
from simpletuner_fleet.core.people.sign_in.trial import Trial
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.people.accounts import user_event
from simpletuner_fleet.orchestrator.sign_in.added import seal_of
from simpletuner_fleet.orchestrator.sign_in.ways import SignIn

BY_FILE = "It is changed in the file of --sign-in-file."


class ProviderChange(Struct, frozen=True, kw_only=True):
    """Describes a change of a provider that people log in with. What is left out stays as it is."""

    title: str | UnsetType = UNSET
    issuer: str | UnsetType = UNSET
    client_id: str | UnsetType = UNSET
    scopes: tuple[str, ...] | UnsetType = UNSET
    groups_claim: str | UnsetType = UNSET
    name_claim: str | UnsetType = UNSET
    subject_claim: str | UnsetType = UNSET
    roles: RoleRules | UnsetType = UNSET
    teams: dict[str, TeamGroups] | UnsetType = UNSET
    new_users: bool | UnsetType = UNSET
    leeway_s: float | UnsetType = UNSET
    hosts: tuple[str, ...] | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not UNSET}


class ProviderSaved(Struct, frozen=True, kw_only=True):
    row: StoredProvider
    ended: list[str] = []
    """Hashes of the sessions that ended with it."""


async def add_provider(
    fleet: Fleet, sign_in: SignIn, provider: Provider, secret: str, actor: Actor, *, enabled: bool
) -> StoredProvider:
    wanted = checked_provider(replace(provider, title=provider.title or provider.id))
    _refuse_twin_in_file(sign_in, wanted)
    sealed = _sealed(fleet, wanted, secret)

    def step(transaction: Transaction) -> StoredProvider:
        known = transaction.organisation.providers
        if len(known) >= MAX_PROVIDERS:
            raise Conflict(f"There are {MAX_PROVIDERS} providers already, and no more are kept.")
        if any(one.provider.id == wanted.id for one in known):
            raise Conflict(f"There is a provider '{wanted.id}' already.", next_step="Choose another name.")
        now = transaction.now
        row = StoredProvider(
            provider=wanted, sealed_secret=sealed, enabled=enabled, created_at=now, changed_at=now
        )
        _save(transaction, row)
        transaction.record(_event(EventType.PROVIDER_ADDED, row, actor))
        return row

    return await fleet.act(step)


async def change_provider(
    fleet: Fleet,
    sign_in: SignIn,
    provider_id: str,
    change: ProviderChange,
    actor: Actor,
    *,
    secret: str | UnsetType = UNSET,
    enabled: bool | UnsetType = UNSET,
) -> ProviderSaved:
    """Changes a provider. If it is switched off or gets another issuer, its sessions end.

    Other changes take effect at the next log-in.
    """
    _refuse_filed(sign_in, provider_id)
    before = existing_provider(fleet, provider_id)
    wanted = checked_provider(replace(before.provider, **change.given()))
    _refuse_twin_in_file(sign_in, wanted)
    if wanted.issuer != before.provider.issuer and before.sealed_secret and secret is UNSET:
        raise Invalid(
            "A secret is shown to nobody but the issuer that it was given for: give the new one's as well.",
            path="$.client_secret",
        )
    sealed = before.sealed_secret if secret is UNSET else _sealed(fleet, wanted, secret)

    def step(transaction: Transaction) -> ProviderSaved:
        if transaction.organisation.provider(provider_id) != before:
            raise Conflict(
                f"The provider '{provider_id}' was changed by somebody else at this moment.",
                next_step="Look at it again, then repeat your change.",
            )
        after = replace(
            before,
            provider=wanted,
            sealed_secret=sealed,
            enabled=before.enabled if enabled is UNSET else enabled,
        )
        if after == before:
            return ProviderSaved(row=before)
        after = replace(after, changed_at=transaction.now)
        _save(transaction, after)
        transaction.record(_event(EventType.PROVIDER_CHANGED, after, actor, changed=_changed(before, after)))
        gone = (before.enabled and not after.enabled) or wanted.issuer != before.provider.issuer
        return ProviderSaved(row=after, ended=_end_sessions(transaction, before, actor) if gone else [])

    return await fleet.act(step)


async def delete_provider(fleet: Fleet, sign_in: SignIn, provider_id: str, actor: Actor) -> list[str]:
    """Deletes a provider, and returns the hashes of the sessions that ended.

    Its users stay, and are the same again with a provider of the same issuer.
    """
    _refuse_filed(sign_in, provider_id)

    def step(transaction: Transaction) -> list[str]:
        row = transaction.organisation.provider(provider_id)
        if row is None:
            raise unknown(provider_id)
        transaction.tx.delete_setting(PROVIDER_PREFIX + provider_id)
        transaction.organisation_changed()
        transaction.record(_event(EventType.PROVIDER_DELETED, row, actor))
        return _end_sessions(transaction, row, actor)

    return await fleet.act(step)


async def note_trial(fleet: Fleet, provider: Provider, trial: Trial, actor: Actor) -> None:
    details = {"issuer": provider.issuer, "result": str(trial.state)}
    event = Event(
        type=EventType.PROVIDER_TESTED,
        actor=actor,
        target_type="provider",
        target_id=provider.id,
        details=details,
    )
    await fleet.act(lambda transaction: transaction.record(event))


def existing_provider(fleet: Fleet, provider_id: str) -> StoredProvider:
    row = fleet.organisation.provider(provider_id)
    if row is None:
        raise unknown(provider_id)
    return row


def unknown(provider_id: str) -> NotFound:
    return NotFound(
        f"There is no provider '{provider_id[:50]}'.", next_step="See them with 'simpletuner sign-in list'."
    )


def _refuse_filed(sign_in: SignIn, provider_id: str) -> None:
    if any(one.id == provider_id for one in sign_in.filed):
        raise Conflict(
            f"The provider '{provider_id}' stands in the server's own file, and is not changed from here.",
            next_step=BY_FILE,
        )


def _refuse_twin_in_file(sign_in: SignIn, provider: Provider) -> None:
    if sign_in.is_in_file(provider):
        raise Conflict(
            "The server's own file has a provider of this name or this issuer already.", next_step=BY_FILE
        )


def _refuse_twin(transaction: Transaction, wanted: Provider) -> None:
    """Refuses a second provider of one issuer: to users it would be the same one, with two sets of rules."""
    for other in transaction.organisation.providers:
        if other.provider.issuer == wanted.issuer and other.provider.id != wanted.id:
            raise Conflict(
                f"The provider '{other.provider.id}' has this issuer already.",
                next_step="Change that one, or delete it first.",
            )


def _save(transaction: Transaction, row: StoredProvider) -> None:
    _refuse_twin(transaction, row.provider)
    transaction.tx.put_setting(PROVIDER_PREFIX + row.provider.id, msgspec.json.encode(row).decode())
    transaction.organisation_changed()


def _sealed(fleet: Fleet, provider: Provider, secret: str) -> str:
    if not secret:
        return ""
    if fleet.vault is None:
        raise Conflict("This orchestrator stores no secrets.")
    return fleet.vault.seal(seal_of(provider), secret)


def _end_sessions(transaction: Transaction, row: StoredProvider, actor: Actor) -> list[str]:
    provider = row.provider
    sessions = transaction.tx.sessions_of_issuer(provider.issuer)
    for session in sessions:
        transaction.tx.delete_session(session.token_hash)
        transaction.record(user_event(EventType.USER_LOGOUT, session.user_id, actor, provider=provider.id))
    return [session.token_hash for session in sessions]


def _changed(before: StoredProvider, after: StoredProvider) -> list[str]:
    names = [
        name
        for name in Provider.__struct_fields__
        if getattr(before.provider, name) != getattr(after.provider, name)
    ]
    names += ["client_secret"] if before.sealed_secret != after.sealed_secret else []
    return names + (["enabled"] if before.enabled != after.enabled else [])


def _event(kind: EventType, row: StoredProvider, actor: Actor, **more: Any) -> Event:
    return Event(
        type=kind,
        actor=actor,
        target_type="provider",
        target_id=row.provider.id,
        details={**msgspec.to_builtins(row.provider), "enabled": row.enabled, **more},
    )
