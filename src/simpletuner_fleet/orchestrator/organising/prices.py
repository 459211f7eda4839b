"""Lets administrators set prices. Each act is one transaction with its audit entry."""

from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.bounds import Count, Name
from simpletuner_fleet.core.errors import Conflict, NotFound
from simpletuner_fleet.core.events import Actor, Event, EventType
from simpletuner_fleet.core.money.amounts import checked_currency
from simpletuner_fleet.core.money.prices import PriceRule, checked_price_rule
from simpletuner_fleet.core.people.quotas import OF_MONEY
from simpletuner_fleet.core.workers.worker import WorkerType
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.setting_documents import CURRENCY_SETTING, PRICE_PREFIX
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.organising.unreadable import delete_if_unreadable

MAX_PRICE_RULES = 500


class NewPrice(Struct, frozen=True, kw_only=True):
    price_micros: Count
    """Of one GPU for an hour, in millionths of the currency's unit: 2500000 is 2.50."""
    label: Name = ""
    value: Name = ""
    """A glob that the label's value fits."""
    gpu: Name = ""
    """A glob that the GPU's name fits."""
    worker_type: WorkerType | None = None


async def create_price(fleet: Fleet, asked: NewPrice, actor: Actor) -> PriceRule:
    """Adds a price rule. What runs already keeps the price that it began with."""

    def step(transaction: Transaction) -> PriceRule:
        if len(transaction.organisation.prices.rules) >= MAX_PRICE_RULES:
            raise Conflict(f"There are {MAX_PRICE_RULES} rules about prices already, and no more are kept.")
        rule = checked_price_rule(
            PriceRule(
                id=transaction.ids.new("p"),
                price_micros=asked.price_micros,
                label=asked.label,
                value=asked.value,
                gpu=asked.gpu,
                worker_type=asked.worker_type,
                created_at=transaction.now,
            )
        )
        transaction.tx.put_setting(PRICE_PREFIX + rule.id, msgspec.json.encode(rule).decode())
        transaction.organisation_changed()
        transaction.record(_event(EventType.PRICE_SET, rule.id, actor, **msgspec.to_builtins(rule)))
        return rule

    return await fleet.act(step)


async def delete_price(fleet: Fleet, rule_id: str, actor: Actor) -> None:
    """Deletes a rule about prices, also one that cannot be read."""

    def step(transaction: Transaction) -> None:
        deleted = EventType.PRICE_DELETED
        if delete_if_unreadable(transaction, PRICE_PREFIX, rule_id, deleted, "price", actor):
            return
        rules = transaction.organisation.prices.rules
        known = next((rule for rule in rules if rule.id == rule_id), None)
        if known is None:
            raise NotFound(
                f"There is no rule about prices {rule_id}.",
                next_step="See them with 'simpletuner prices list'.",
            )
        transaction.tx.delete_setting(PRICE_PREFIX + rule_id)
        transaction.organisation_changed()
        transaction.record(_event(deleted, rule_id, actor, **msgspec.to_builtins(known)))

    await fleet.act(step)


async def set_currency(fleet: Fleet, currency: str, actor: Actor) -> str:
    """Sets the currency. Amounts are kept without it, so it cannot change once something was counted in it."""
    checked_currency(currency)

    def step(transaction: Transaction) -> str:
        was = transaction.organisation.prices.currency
        if was == currency:
            return currency
        if _counts_money(transaction) and not transaction.organisation.is_unreadable(CURRENCY_SETTING):
            raise Conflict(
                f"Prices, budgets or costs are in {was} already, so that is the currency.",
                next_step="Delete the prices, budgets and pools first. Once jobs have been counted in it, it stays.",
            )
        transaction.tx.put_setting(CURRENCY_SETTING, currency)
        transaction.organisation_changed()
        transaction.record(_event(EventType.CURRENCY_SET, "currency", actor, currency=currency, was=was))
        return currency

    return await fleet.act(step)


def _counts_money(transaction: Transaction) -> bool:
    organisation = transaction.organisation
    workers = transaction.index.roster.workers.values()
    return (
        bool(organisation.prices.rules)
        or any(quota.kind in OF_MONEY for quota in organisation.quotas)
        or any(rule.cost_over_micros is not None for rule in organisation.rules)
        or any(
            worker.price_micros is not None or worker.reported_price_micros is not None for worker in workers
        )
        or bool(transaction.tx.pools())
        or transaction.tx.any_priced_attempt()
    )


def _event(kind: EventType, target: str, actor: Actor, **details: Any) -> Event:
    return Event(type=kind, actor=actor, target_type="price", target_id=target, details=details)
