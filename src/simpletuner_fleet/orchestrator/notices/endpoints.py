"""Manages endpoints of notifications: adds, changes, pauses, replays and deletes them, each with its audit entry."""

from collections.abc import Callable
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import Conflict, Forbidden, Invalid, NotFound, NotYours
from simpletuner_fleet.core.events import Event, EventType
from simpletuner_fleet.core.notices.checking import (
    MAX_OF_ONE_OWNER,
    check_address,
    check_name,
    check_rules,
    shown_address,
)
from simpletuner_fleet.core.notices.endpoint import (
    Channel,
    DeliveryState,
    DeliveryTry,
    Endpoint,
    EndpointPause,
    NoticeRules,
    SigningKey,
)
from simpletuner_fleet.core.notices.kinds import needed_permissions
from simpletuner_fleet.core.people.ownership import Writer
from simpletuner_fleet.delivery.signing import new_key
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import AuditFilter, Vault, View

HISTORY = 100
"""So many tries of each endpoint are remembered."""
OVERLAP_S = 24 * 3600.0
"""For so long the secret before the newest one still signs."""

Change = Callable[[Transaction, Endpoint], Endpoint]
RulesChange = Callable[[NoticeRules], NoticeRules | None]
"""Returns the changed rules; None where none of them changes."""


class EndpointCaller(Struct, frozen=True, kw_only=True):
    """Describes the caller who looks at or changes endpoints, and what they may do."""

    writer: Writer
    may: Callable[[str], bool]
    sees_all: bool
    """May look after everybody's endpoints."""


class NewEndpoint(Struct, frozen=True, kw_only=True):
    name: str
    channel: Channel
    address: str
    rules: NoticeRules


class EndpointWithKey(Struct, frozen=True, kw_only=True):
    endpoint: Endpoint
    key: str = ""
    """The secret of a webhook, which is shown once."""


async def list_endpoints(fleet: Fleet, who: EndpointCaller) -> list[Endpoint]:
    rows = await fleet.read(lambda view: view.endpoints())
    return [one for one in rows if who.sees_all or one.owner == who.writer.owns_as]


async def endpoint_of(fleet: Fleet, endpoint_id: str, who: EndpointCaller) -> Endpoint:
    return await fleet.read(lambda view: _seen(view, endpoint_id, who))


async def history_of(fleet: Fleet, endpoint_id: str, who: EndpointCaller) -> list[DeliveryTry]:
    def look(view: View) -> list[DeliveryTry]:
        _seen(view, endpoint_id, who)
        return view.deliveries(endpoint_id, HISTORY)

    return await fleet.read(look)


async def add(fleet: Fleet, asked: NewEndpoint, who: EndpointCaller) -> EndpointWithKey:
    check_name(asked.name)
    check_address(asked.channel, asked.address)
    _check_rules(asked.channel, asked.rules, who)
    vault, endpoint_id = _vault(fleet), fleet.ids.new("n")
    key = new_key() if asked.channel is Channel.WEBHOOK else ""
    sealed_address = vault.seal(address_seal(endpoint_id), asked.address)
    sealed_key = vault.seal(key_seal(endpoint_id, 1), key) if key else ""

    def step(transaction: Transaction) -> Endpoint:
        mine = [one for one in transaction.tx.endpoints() if one.owner == who.writer.owns_as]
        if len(mine) >= MAX_OF_ONE_OWNER:
            raise Conflict(
                f"Nobody has more than {MAX_OF_ONE_OWNER} endpoints.", next_step="Delete one of them."
            )
        head = transaction.tx.audit_head()
        endpoint = Endpoint(
            id=endpoint_id,
            owner=who.writer.owns_as,
            name=asked.name,
            channel=asked.channel,
            sealed_address=sealed_address,
            shown_address=shown_address(asked.channel, asked.address),
            rules=asked.rules,
            state=DeliveryState(cursor=head.seq if head else 0),
            created_at=transaction.now,
            keys=(SigningKey(sealed=sealed_key, number=1, created_at=transaction.now),) if key else (),
        )
        transaction.tx.put_endpoint(endpoint)
        transaction.record(
            _event(EventType.NOTIFICATION_ADDED, endpoint, who, events=list(endpoint.rules.events))
        )
        return endpoint

    return EndpointWithKey(endpoint=await fleet.act(step), key=key)


async def change(
    fleet: Fleet,
    endpoint_id: str,
    who: EndpointCaller,
    *,
    name: str | None = None,
    address: str | None = None,
    change_rules: RulesChange | None = None,
) -> Endpoint:
    """Changes an endpoint. What was not yet sent by the old rules is sent by the new ones."""
    if name is not None:
        check_name(name)
    known = await endpoint_of(fleet, endpoint_id, who)
    sealed = None
    if address is not None:
        if known.owner != who.writer.owns_as:  # a mail to them may let its reader act in their name
            raise NotYours(
                "Only its owner says where an endpoint leads.",
                next_step="Pause or delete it, or ask its owner.",
            )
        check_address(known.channel, address)
        sealed = _vault(fleet).seal(address_seal(endpoint_id), address)

    def changed(transaction: Transaction, endpoint: Endpoint) -> Endpoint:
        after = replace(endpoint, name=name or endpoint.name)
        rules = change_rules(endpoint.rules) if change_rules else None
        if rules is not None:
            _check_rules(endpoint.channel, rules, who)
            after = replace(after, rules=rules, state=replace(endpoint.state, upto=0))
        if sealed is not None and address is not None:
            shown = shown_address(endpoint.channel, address)
            after = replace(after, sealed_address=sealed, shown_address=shown)
        parts = {"name": name, "address": address, "events": rules}
        what = [part for part, value in parts.items() if value is not None]
        transaction.record(_event(EventType.NOTIFICATION_CHANGED, after, who, changed=what))
        return after

    return await _change(fleet, endpoint_id, who, changed)


async def rotate_key(
    fleet: Fleet, endpoint_id: str, who: EndpointCaller, overlap_s: float = OVERLAP_S
) -> EndpointWithKey:
    """Makes a new secret, which signs from now on; the one before it goes on signing for a while as well."""
    key, vault = new_key(), _vault(fleet)

    def rotated(transaction: Transaction, endpoint: Endpoint) -> Endpoint:
        if not endpoint.keys:
            raise Conflict("Only webhooks are signed: this endpoint has no secret.")
        now, newest = transaction.now, endpoint.keys[-1]
        number = newest.number + 1
        fresh = SigningKey(
            sealed=vault.seal(key_seal(endpoint_id, number), key), number=number, created_at=now
        )
        transaction.record(_event(EventType.NOTIFICATION_KEY_ROTATED, endpoint, who, overlap_s=overlap_s))
        return replace(endpoint, keys=(replace(newest, until=now + overlap_s), fresh))

    return EndpointWithKey(endpoint=await _change(fleet, endpoint_id, who, rotated), key=key)


async def pause(fleet: Fleet, endpoint_id: str, who: EndpointCaller) -> Endpoint:
    def paused(transaction: Transaction, endpoint: Endpoint) -> Endpoint:
        if endpoint.paused:
            return endpoint
        transaction.record(_event(EventType.NOTIFICATION_PAUSED, endpoint, who))
        by = who.writer.actor
        return replace(
            endpoint, paused=EndpointPause(at=transaction.now, why=f"paused by {by.name}", by=by.id)
        )

    return await _change(fleet, endpoint_id, who, paused)


async def resume(fleet: Fleet, endpoint_id: str, who: EndpointCaller) -> Endpoint:
    """Resumes an endpoint where it stopped: what happened meanwhile is sent now."""

    def resumed(transaction: Transaction, endpoint: Endpoint) -> Endpoint:
        _check_may(endpoint.rules, who)
        transaction.record(_event(EventType.NOTIFICATION_RESUMED, endpoint, who))
        kept = DeliveryState(cursor=endpoint.state.cursor, upto=endpoint.state.upto)
        return replace(endpoint, paused=None, state=kept)

    return await _change(fleet, endpoint_id, who, resumed)


async def replay(
    fleet: Fleet, endpoint_id: str, who: EndpointCaller, *, seq: int | None = None, since: float | None = None
) -> Endpoint:
    """Sends again what happened from this entry of the log on, or from this moment; each message keeps its id."""

    def replayed(transaction: Transaction, endpoint: Endpoint) -> Endpoint:
        start = _entry_at(transaction.tx, seq, since)
        transaction.record(_event(EventType.NOTIFICATION_REPLAYED, endpoint, who, seq=start))
        return replace(endpoint, paused=None, state=DeliveryState(cursor=start - 1))

    return await _change(fleet, endpoint_id, who, replayed)


async def delete(fleet: Fleet, endpoint_id: str, who: EndpointCaller) -> None:
    def step(transaction: Transaction) -> None:
        endpoint = _seen(transaction.tx, endpoint_id, who)
        transaction.tx.delete_endpoint(endpoint_id)
        transaction.record(_event(EventType.NOTIFICATION_DELETED, endpoint, who))

    await fleet.act(step)


def zone_named(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(
            f"'{name[:60]}' is not a time zone this server knows.",
            path="$.zone",
            next_step="Name one as Europe/Berlin or UTC.",
        ) from None


def address_seal(endpoint_id: str) -> str:
    return f"endpoint {endpoint_id} address"


def key_seal(endpoint_id: str, number: int) -> str:
    return f"endpoint {endpoint_id} key {number}"


async def _change(fleet: Fleet, endpoint_id: str, who: EndpointCaller, change: Change) -> Endpoint:
    def step(transaction: Transaction) -> Endpoint:
        before = _seen(transaction.tx, endpoint_id, who)
        after = replace(change(transaction, before), turn=before.turn + 1)
        transaction.tx.put_endpoint(after)
        return after

    return await fleet.act(step)


def _seen(view: View, endpoint_id: str, who: EndpointCaller) -> Endpoint:
    """Returns the endpoint. Another person's endpoint is reported as unknown, like one that does not exist."""
    endpoint = view.endpoint(endpoint_id)
    if endpoint is None or not (who.sees_all or endpoint.owner == who.writer.owns_as):
        raise NotFound(
            f"There is no endpoint {endpoint_id}.",
            next_step="List them with 'simpletuner notifications list'.",
        )
    return endpoint


def _check_rules(channel: Channel, rules: NoticeRules, who: EndpointCaller) -> None:
    check_rules(channel, rules)
    zone_named(rules.zone)
    _check_may(rules, who)


def _check_may(rules: NoticeRules, who: EndpointCaller) -> None:
    for permission in sorted(needed_permissions(rules.events, rules.scope)):
        if not who.may(permission):
            raise Forbidden(permission)


def _entry_at(view: View, seq: int | None, since: float | None) -> int:
    head = view.audit_head()
    newest = head.seq if head else 0
    if since is not None:
        first = view.audit_page(AuditFilter(since=since), 1, 0, newest_first=False)
        return first[0].seq if first else newest + 1
    return min(max(1, seq or 1), newest + 1)


def _vault(fleet: Fleet) -> Vault:
    if fleet.vault is None:
        raise Conflict("This orchestrator stores no secrets, and an address is one.")
    return fleet.vault


def _event(type_: EventType, endpoint: Endpoint, who: EndpointCaller, **more: Any) -> Event:
    details = {
        "name": endpoint.name,
        "channel": str(endpoint.channel),
        "address": endpoint.shown_address,
        **more,
    }
    return Event(
        type=type_,
        actor=who.writer.actor,
        target_type="notification",
        target_id=endpoint.id,
        details=details,
    )
