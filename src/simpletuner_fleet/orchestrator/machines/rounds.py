"""Runs one round over all pools: asks the providers, then decides in one transaction.

What follows from the decision is in `calls.py`.
"""

import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.provisioning.deciding import Stray, decide, with_state_for_people
from simpletuner_fleet.core.provisioning.growth import Wanted
from simpletuner_fleet.core.provisioning.machine import (
    IN_USE,
    Machine,
    MachineEndReason,
    MachineState,
    UnreadableMachine,
    worker_price,
)
from simpletuner_fleet.core.provisioning.money import day_begins, month_begins, uncounted
from simpletuner_fleet.core.provisioning.offers import MachineOffer, ProviderSnapshot
from simpletuner_fleet.core.provisioning.pool import MachinePool, NoMachine, name_for, our_beginning
from simpletuner_fleet.core.restoring import HANDS_OFF
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines.machine_rows import machine_event, save_machine
from simpletuner_fleet.orchestrator.machines.situation import fleet_now, worker_facts
from simpletuner_fleet.providers.contract import (
    MachineProvider,
    ProviderRefused,
    ProviderUnsure,
)
from simpletuner_fleet.storage.ownership import FLEET_ID

log = logging.getLogger(__name__)

ROUNDS_MARGIN_S = 120.0


class MachineCalls(Struct, frozen=True, kw_only=True):
    """Lists the calls to providers that follow from one decision."""

    ask: tuple[str, ...] = ()
    destroy: tuple[Machine, ...] = ()


class ProviderSnapshots(Struct, frozen=True, kw_only=True):
    snapshots: Mapping[str, ProviderSnapshot]
    troubles: Mapping[str, str]
    """By pool, what kept its provider from being looked at."""
    being_looked_at: frozenset[str] = frozenset()
    """Names of the pools whose providers have not answered yet, and may still."""
    under_way: frozenset[str] = frozenset()
    """Ids of the machines for which a call of an earlier round is under way, or waits for its turn."""


async def take_snapshot(provider: MachineProvider, now: float, *, with_offers: bool) -> ProviderSnapshot:
    """Asks a provider for its machines and offers. `now` is read before that.

    Its machines are returned even where there are no offers.
    """
    machines, trouble = await provider.machines(), ""
    offers: list[MachineOffer] = []
    try:
        offers = await provider.offers() if with_offers else []
    except (ProviderRefused, ProviderUnsure) as error:
        trouble = str(error)
    return ProviderSnapshot(
        at=now,
        settle_s=provider.settle_s,
        machines=tuple(machines),
        offers=tuple(offers),
        trouble=trouble,
        knows_offers=with_offers and not trouble,
    )


async def decide_once(fleet: Fleet, seen: ProviderSnapshots) -> MachineCalls:
    return await fleet.act(lambda transaction: _decide(transaction, seen, fleet.began_at))


def since_when(now: float) -> float:
    """Returns from when on machines that are gone still matter: for this month's cost, and for yesterday's failures."""
    return min(month_begins(now), yesterday_begins(now))


def yesterday_begins(now: float) -> float:
    return day_begins(now) - 86_400.0


def _decide(transaction: Transaction, seen: ProviderSnapshots, began_at: float) -> MachineCalls:
    tx, now = transaction.tx, transaction.now
    fleet_id = tx.setting(FLEET_ID)
    if fleet_id is None or tx.setting(HANDS_OFF) is not None:
        return MachineCalls()
    pools = tx.pools()
    # Of those that were refused, thousands in a month, only the last count: a pool waits longer after each.
    machines = tx.machines_that_count(gone_after=yesterday_begins(now), made_after=since_when(now))
    unreadable = tx.unreadable_machines()
    facts = worker_facts(transaction, machines)
    lead_s = stop_lead_s(transaction.policy, seen.snapshots)
    decision = decide(
        pools,
        machines,
        seen.snapshots,
        facts,
        replace(
            fleet_now(transaction, pools, machines, facts, lead_s, began_at),
            under_way=seen.under_way,
            being_looked_at=seen.being_looked_at,
            uncounted=frozenset(pool.name for pool in pools if uncounted(pool, unreadable, now)),
        ),
        our_beginning(fleet_id),
    )
    for before, after in decision.changed:
        save_machine(transaction, before, after)
    after_of = {after.id: after for _, after in decision.changed}
    for machine in machines:
        _tell_price(transaction, after_of.get(machine.id, machine))
    # A row that cannot be read is there all the same: what runs on its machine is not ended as a stray.
    names = {name_for(fleet_id, one.id) for one in unreadable if one.is_live}
    adopted = [_save_stray(transaction, stray) for stray in decision.strays if stray.listed.name not in names]
    pool_of = {pool.name: pool for pool in pools}
    wanted = [_save_wanted(transaction, fleet_id, pool_of[one.pool], one) for one in decision.wanted]
    left = [
        *(
            after_of.get(one.id, one)
            for one in machines
            if one.state is not MachineState.GONE or one.id in after_of
        ),
        *adopted,
    ]
    for pool in pools:
        if _is_left(pool, left, unreadable):
            tx.delete_pool(pool.name)
            continue
        _tell_pool(transaction, pool, decision.no_machine.get(pool.name, {}), seen)
    destroying = [
        one
        for one in left
        if one.state is MachineState.DESTROYING and one.provider_id and one.pool in pool_of
    ]
    return MachineCalls(ask=tuple(wanted), destroy=tuple(destroying))


def _tell_price(transaction: Transaction, machine: Machine) -> None:
    """Updates the worker's price: jobs pay what the provider asks now, whatever it was when the worker started."""
    worker = transaction.tx.worker(machine.worker_id) if machine.state in IN_USE else None
    if worker is None or worker.registered_at is None:
        return
    price = worker_price(machine)
    if price is not None and worker.reported_price_micros != price:
        transaction.save_worker(replace(worker, reported_price_micros=price))


def stop_lead_s(policy: Policy, snapshots: Mapping[str, ProviderSnapshot]) -> float:
    """Returns how long it takes from the decision to stop a machine until it surely costs nothing any more."""
    settle_s = max((snapshot.settle_s for snapshot in snapshots.values()), default=0.0)
    return policy.checkpoint_wait_s + policy.cancel_grace_s + 2 * settle_s + ROUNDS_MARGIN_S


def _save_wanted(transaction: Transaction, fleet_id: str, pool: MachinePool, wanted: Wanted) -> str:
    offer, machine_id = wanted.offer, transaction.ids.new("m")
    machine = Machine(
        id=machine_id,
        pool=pool.name,
        name=name_for(fleet_id, machine_id),
        state=MachineState.WANTED,
        created_at=transaction.now,
        gpu_name=offer.gpu_name,
        gpus=offer.gpus,
        nodes=offer.nodes,
        vram_gb=offer.vram_gb,
        accelerator=offer.accelerator,
        spot=offer.spot,
        region=offer.region,
        offer_id=offer.id,
        offered_micros=offer.hourly_micros,
        for_job=wanted.for_job,
    )
    transaction.tx.put_machine(machine)
    transaction.record(machine_event(machine))
    return machine_id


def _save_stray(transaction: Transaction, stray: Stray) -> Machine:
    """Adds a machine that is not in the database.

    Nobody knows since when it costs, and for what: it counts from now on.
    """
    now, price = transaction.now, stray.listed.hourly_micros or 0
    machine = Machine(
        id=transaction.ids.new("m"),
        pool=stray.pool,
        name=stray.listed.name,
        state=MachineState.DESTROYING,
        created_at=now,
        asked_at=now,
        destroying_at=now,
        provider_id=stray.listed.provider_id,
        offered_micros=price,
        rates=((now, price),),
        why=MachineEndReason.STRAY,
    )
    transaction.tx.put_machine(machine)
    transaction.record(machine_event(machine))
    return machine


def _is_left(pool: MachinePool, machines: Sequence[Machine], unreadable: Sequence[UnreadableMachine]) -> bool:
    """Tells whether the pool is deleted and has no machine any more."""
    return (
        pool.deleted_at is not None
        and not any(one.is_live and one.pool == pool.name for one in machines)
        and not any(one.is_live and one.may_be_of(pool.name) for one in unreadable)
    )


def _tell_pool(
    transaction: Transaction,
    pool: MachinePool,
    no_machine: dict[str, NoMachine],
    seen: ProviderSnapshots,
) -> None:
    if pool.name in seen.being_looked_at:
        return
    unseen_at = None if pool.name in seen.snapshots else transaction.now
    after = with_state_for_people(pool, no_machine, seen.troubles.get(pool.name, ""), unseen_at)
    if after != pool:
        transaction.tx.put_pool(after)
        transaction.publish("pool", id=pool.name, audience=pool.audience)
