"""Saves configs: every save is a version, and a job keeps the copy it was submitted with."""

import asyncio
from typing import Any, NamedTuple

import msgspec

from simpletuner_fleet.core.configs.bundle import MAX_BUNDLE_BYTES, Bundle, check_name, read_bundle
from simpletuner_fleet.core.configs.bundle_diff import BundleDiff, diff_bundles
from simpletuner_fleet.core.configs.spelling import nearest
from simpletuner_fleet.core.cutting import excerpt
from simpletuner_fleet.core.errors import Conflict, NotFound, TooLarge
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.people.ownership import Writer
from simpletuner_fleet.core.people.visibility import Belonging, Visibility, may_see
from simpletuner_fleet.core.policy import MAX_NAME_CHARS
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.owners import refuse_others
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.engine.visibility import restricted
from simpletuner_fleet.ports import ConfigVersion, View


class Diff(NamedTuple):
    was: int
    now: int
    difference: BundleDiff


class Sharing(NamedTuple):
    """Holds the team and visibility asked for a config or a dataset.

    None means that it stays as it is, or is as the settings say.
    """

    team: str | None = None
    visibility: Visibility | None = None


AS_IT_IS = Sharing()


async def save_config(
    fleet: Fleet, name: str, body: Any, writer: Writer, sharing: Sharing = AS_IT_IS
) -> tuple[ConfigVersion, bool]:
    """Returns the stored version, and whether anything changed: saving the same again keeps the version."""
    check_name(name, "$.name", "config's name")
    bundle = msgspec.json.encode(read_bundle(body))
    if len(bundle) > MAX_BUNDLE_BYTES:
        raise TooLarge(f"A config can be at most {MAX_BUNDLE_BYTES // 1024 // 1024} MiB.")

    def step(transaction: Transaction) -> tuple[ConfigVersion, bool]:
        known = transaction.tx.config(name)
        if known:
            _refuse_others(transaction, known, writer)
        its = _belonging(transaction, known, writer, sharing)
        if known and msgspec.json.encode(bundle_of(known)) == bundle and known.belongs == its:
            return known, False
        fresh = ConfigVersion(
            name=name,
            version=known.version + 1 if known else 1,
            bundle=bundle,
            created_at=transaction.now,
            created_by=writer.actor.id,
            owner=its.owner,
            team=its.team,
            visibility=its.visibility,
        )
        transaction.tx.add_config(fresh)
        transaction.record(
            _event(EventType.CONFIG_SAVED, name, writer.actor, version=fresh.version, owner=fresh.owner)
        )
        transaction.publish("config", id=name, belongs=fresh.belongs)
        return fresh, True

    return await fleet.act(step)


async def delete_config(fleet: Fleet, name: str, writer: Writer) -> None:
    def step(transaction: Transaction) -> None:
        known = restricted(transaction.tx, writer.scope).config(name)
        if known is None:
            raise no_such_config(restricted(transaction.tx, writer.scope), name)
        _refuse_others(transaction, known, writer)
        transaction.tx.delete_config(name, transaction.now)
        transaction.record(_event(EventType.CONFIG_DELETED, name, writer.actor))
        transaction.publish("config", id=name, belongs=known.belongs)

    await fleet.act(step)


async def get_config(fleet: Fleet, name: str, version: int | None) -> ConfigVersion:
    def look(view: View) -> ConfigVersion:
        config = view.config(name, version)
        if config is None:
            raise no_such_config(view, name, version)
        return config

    return await fleet.read(look)


def no_such_config(view: View, name: str, version: int | None = None) -> NotFound:
    """Returns an error that names the nearest config which this caller may see."""
    if version and view.config(name):
        return NotFound(
            f"Config '{name}' has no version {version}.",
            next_step=f"List its versions with 'simpletuner configs history {name}'.",
        )
    near = nearest(name, (config.name for config in view.configs()))
    name = excerpt(name, MAX_NAME_CHARS)
    if near:
        return NotFound(
            f"There is no config '{name}'; did you mean '{near}'?",
            next_step="List them with 'simpletuner configs list'.",
        )
    return NotFound(
        f"There is no config '{name}'.",
        next_step="List them with 'simpletuner configs list', or import one with 'simpletuner configs import'.",
    )


async def versions_of(fleet: Fleet, name: str) -> list[ConfigVersion]:
    def look(view: View) -> list[ConfigVersion]:
        versions = view.config_versions(name)
        if not versions:
            raise no_such_config(view, name)
        return versions

    return await fleet.read(look)


async def diff_configs(fleet: Fleet, name: str, was: int | None, now: int | None) -> Diff:
    """Compares two versions: the newest and the one before it, unless others are named."""

    def look(view: View) -> tuple[ConfigVersion, ConfigVersion]:
        to = view.config(name, now)
        if to is None:
            raise no_such_config(view, name, now)
        since = _before(view, to) if was is None else view.config(name, was)
        if since is None:
            raise no_such_config(view, name, was)
        return since, to

    older, newer = await fleet.read(look)
    difference = await asyncio.to_thread(_diff, older, newer)
    return Diff(older.version, newer.version, difference)


def _before(view: View, config: ConfigVersion) -> ConfigVersion:
    """Returns the newest version before this one that the caller may see, and this one where there is none.

    They are read one by one: there may be thousands, each of megabytes.
    """
    for version in range(config.version - 1, 0, -1):
        older = view.config(config.name, version)
        if older is not None:
            return older
    return config


def _diff(older: ConfigVersion, newer: ConfigVersion) -> BundleDiff:
    return diff_bundles(bundle_of(older), bundle_of(newer))


def _belonging(
    transaction: Transaction, known: ConfigVersion | None, writer: Writer, sharing: Sharing
) -> Belonging:
    if known and sharing == AS_IT_IS:
        return known.belongs
    team = (known.team if known else None) if sharing.team is None else sharing.team
    default = transaction.policy.default_visibility
    its = transaction.organisation.belonging(writer, team, sharing.visibility, default)
    return Belonging(known.owner if known else its.owner, its.team, its.visibility)


def _refuse_others(transaction: Transaction, known: ConfigVersion, writer: Writer) -> None:
    """Refuses a caller who may not change the config: whoever submits it by its name trusts its owner, and nobody else.

    Whoever cannot see the config is not told whose it is.
    """
    if not may_see(writer.scope, known.belongs):
        raise Conflict(
            f"The name '{known.name}' is taken.", next_step="Save it under another name.", name=known.name
        )
    refuse_others(transaction.tx, writer, known.owner, f"The config '{known.name}'")


def bundle_of(config: ConfigVersion) -> Bundle:
    return msgspec.json.decode(config.bundle, type=Bundle)


def _event(type_: EventType, name: str, actor: Actor, **details: Any) -> Event:
    return Event(type=type_, actor=actor, target_type="config", target_id=name, details=details)
