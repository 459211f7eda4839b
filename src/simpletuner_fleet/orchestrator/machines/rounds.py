"""One round over all pools: look at the providers, decide in one transaction, then ask and destroy.

The decision is written before anything is asked for. What was asked for and not answered is never asked again: the next
look shows whether it is there.
"""

import logging
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.core.money.amounts import typed_amount
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.provisioning.deciding import Stray, decide, told_of
from simpletuner_fleet.core.provisioning.growth import Wanted
from simpletuner_fleet.core.provisioning.machine import (
    MAX_DETAIL_CHARS,
    MAX_LOG_CHARS,
    Machine,
    MachineInput,
    MachineState,
    Why,
    at_price,
    moved,
)
from simpletuner_fleet.core.provisioning.money import day_begins, month_begins
from simpletuner_fleet.core.provisioning.offers import MachineOffer, ProviderLook, worker_type_of
from simpletuner_fleet.core.provisioning.pool import MachinePool, NoMachine, name_for, our_beginning
from simpletuner_fleet.core.restoring import HANDS_OFF
from simpletuner_fleet.core.workers.worker import WorkerType
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines.machine_rows import machine_event, save_machine
from simpletuner_fleet.orchestrator.machines.situation import fleet_now, worker_facts
from simpletuner_fleet.providers.contract import (
    MachineOrder,
    MachineProvider,
    ProviderRefused,
    ProviderUnsure,
)
from simpletuner_fleet.storage.ownership import FLEET_ID

log = logging.getLogger(__name__)

ROUNDS_MARGIN_S = 120.0
LEAVES_AFTER_S = 900.0
"""A machine whose orchestrator does not answer for so long ends its worker by itself."""


NEVER_JOINED = (Why.BOOT_DEADLINE, Why.LEFT)
"""What such a machine has printed says why."""


class MachineCalls(Struct, frozen=True, kw_only=True):
    """What a decision wants of the providers."""

    ask: tuple[str, ...] = ()
    destroy: tuple[Machine, ...] = ()


class LooksOfRound(Struct, frozen=True, kw_only=True):
    looks: Mapping[str, ProviderLook]
    troubles: Mapping[str, str]
    """By pool, what kept its provider from being looked at."""


async def look_at(provider: MachineProvider, now: float, *, with_offers: bool) -> ProviderLook:
    """`now` is read before the provider is asked. Machines are looked after also where nothing is offered."""
    machines, trouble = await provider.machines(), ""
    offers: list[MachineOffer] = []
    try:
        offers = await provider.offers() if with_offers else []
    except (ProviderRefused, ProviderUnsure) as error:
        trouble = str(error)
    return ProviderLook(
        at=now,
        settle_s=provider.settle_s,
        machines=tuple(machines),
        offers=tuple(offers),
        trouble=trouble,
    )


async def decide_once(fleet: Fleet, seen: LooksOfRound) -> MachineCalls:
    return await fleet.act(lambda transaction: _decide(transaction, seen, fleet.began_at))


def since_when(now: float) -> float:
    """From when on machines that are gone still matter: this month's cost, and yesterday's failures."""
    return min(month_begins(now), day_begins(now) - 86_400.0)


def _decide(transaction: Transaction, seen: LooksOfRound, began_at: float) -> MachineCalls:
    tx, now = transaction.tx, transaction.now
    fleet_id = tx.setting(FLEET_ID)
    if fleet_id is None or tx.setting(HANDS_OFF) is not None:
        return MachineCalls()
    pools, machines = tx.pools(), tx.machines_since(since_when(now))
    facts = worker_facts(transaction, machines)
    lead_s = stop_lead_s(transaction.policy, seen.looks)
    decision = decide(
        pools,
        machines,
        seen.looks,
        facts,
        fleet_now(transaction, pools, machines, facts, lead_s, began_at),
        our_beginning(fleet_id),
    )
    for before, after in decision.changed:
        save_machine(transaction, before, after)
    adopted = [_save_stray(transaction, stray) for stray in decision.strays]
    pool_of = {pool.name: pool for pool in pools}
    wanted = [_save_wanted(transaction, fleet_id, pool_of[one.pool], one) for one in decision.wanted]
    after_of = {after.id: after for _, after in decision.changed}
    left = [
        after_of.get(one.id, one)
        for one in machines
        if one.state is not MachineState.GONE or one.id in after_of
    ]
    for pool in pools:
        _tell_pool(transaction, pool, left, decision.no_machine.get(pool.name, {}), seen)
    destroying = [
        one for one in (*left, *adopted) if one.state is MachineState.DESTROYING and one.provider_id
    ]
    return MachineCalls(ask=tuple(wanted), destroy=tuple(destroying))


def stop_lead_s(policy: Policy, looks: Mapping[str, ProviderLook]) -> float:
    """How long it takes from the decision that a machine stops to the certainty that it costs nothing any more."""
    settle_s = max((look.settle_s for look in looks.values()), default=0.0)
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
    """Nobody knows since when it costs, and for what: it counts from now on."""
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
        why=Why.STRAY,
    )
    transaction.tx.put_machine(machine)
    transaction.record(machine_event(machine))
    return machine


def _tell_pool(
    transaction: Transaction,
    pool: MachinePool,
    machines: Sequence[Machine],
    no_machine: dict[str, NoMachine],
    seen: LooksOfRound,
) -> None:
    if pool.deleted_at is not None and not any(one.is_live and one.pool == pool.name for one in machines):
        transaction.tx.delete_pool(pool.name)
        return
    after = told_of(pool, no_machine, seen.troubles.get(pool.name, ""))
    if after != pool:
        transaction.tx.put_pool(after)
        transaction.publish("pool", id=pool.name)


async def ask_once(
    fleet: Fleet, provider: MachineProvider, pool: MachinePool, machine_id: str, joining: dict[str, str]
) -> None:
    """Writes that the provider is asked, asks it, and writes what it said. `joining` is how workers find us."""
    token = fleet.ids.token(tokens.JOIN)

    def asked(transaction: Transaction) -> Machine | None:
        machine = transaction.tx.machine(machine_id)
        if machine is None or machine.state is not MachineState.WANTED:
            return None
        after = replace(
            moved(machine, MachineInput.ASK, transaction.now),
            join_hash=tokens.hashed(token),
            join_until=transaction.now + pool.request.boot_s,
        )
        save_machine(transaction, machine, after)
        return after

    machine = await fleet.act(asked)
    if machine is None:
        return
    fleet.insist_on_leading()
    order = MachineOrder(
        name=machine.name, offer=_offer_of(machine), environment=environment_of(pool, machine, token, joining)
    )
    try:
        created = await provider.create(order)
    except ProviderRefused as error:
        await _note(fleet, machine_id, MachineInput.REFUSE, detail=str(error))
    except NotLeader:
        raise
    except Exception as error:  # anybody's code: whatever it is, the machine may be there
        if not isinstance(error, ProviderUnsure):
            log.exception(
                "asking for machine %s failed; whether it was made the next look will show", machine.name
            )
        await _note(fleet, machine_id, None, detail=str(error) or type(error).__name__)
    else:
        await _note(
            fleet,
            machine_id,
            MachineInput.APPEAR,
            provider_id=created.provider_id,
            hourly_micros=created.hourly_micros,
        )


def environment_of(
    pool: MachinePool, machine: Machine, token: str, joining: dict[str, str]
) -> dict[str, str]:
    given = dict(joining)
    if pool.request.orchestrator_url:
        given["SIMPLETUNER_ORCHESTRATOR_URL"] = pool.request.orchestrator_url
    if machine.gpus and machine.hourly_micros:
        given["SIMPLETUNER_WORKER_PRICE"] = typed_amount(machine.hourly_micros // machine.gpus)
    if worker_type_of(pool) is WorkerType.PERSISTENT:
        given["SIMPLETUNER_WORKER_PERSISTENT"] = "true"
    return {
        **given,
        "SIMPLETUNER_WORKER_TOKEN": token,
        "SIMPLETUNER_WORKER_NAME": machine.name,
        "SIMPLETUNER_LEAVE_AFTER": f"{LEAVES_AFTER_S:g}",
    }


def _offer_of(machine: Machine) -> MachineOffer:
    return MachineOffer(
        id=machine.offer_id,
        hourly_micros=machine.offered_micros,
        gpu_name=machine.gpu_name,
        gpus=machine.gpus,
        vram_gb=machine.vram_gb,
        accelerator=machine.accelerator,
        spot=machine.spot,
        region=machine.region,
    )


async def _note(
    fleet: Fleet,
    machine_id: str,
    machine_input: MachineInput | None,
    *,
    detail: str = "",
    provider_id: str = "",
    hourly_micros: int | None = None,
) -> None:
    """Writes what the provider said. Meanwhile the machine may have joined, or be on its way out."""

    def step(transaction: Transaction) -> None:
        machine = transaction.tx.machine(machine_id)
        if machine is None:
            return
        after = replace(
            machine,
            provider_id=machine.provider_id or provider_id,
            detail=(detail or machine.detail)[:MAX_DETAIL_CHARS],
        )
        if hourly_micros is not None:
            after = at_price(after, hourly_micros, transaction.now)
        if machine_input is not None and machine.state is MachineState.ASKED:
            why = Why.REFUSED if machine_input is MachineInput.REFUSE else ""
            after = moved(after, machine_input, transaction.now, why)
        if after != machine:
            save_machine(transaction, machine, after)

    await fleet.act(step)


async def destroy_once(fleet: Fleet, provider: MachineProvider, machine: Machine) -> None:
    """Called in every round until the list does not show it any more."""
    if machine.why in NEVER_JOINED and machine.joined_at is None and not machine.boot_log:
        await _keep_boot_log(fleet, provider, machine)
    fleet.insist_on_leading()
    try:
        await provider.destroy(machine.provider_id)
    except Exception as error:  # anybody's code; it is tried again as long as the machine is there
        if not isinstance(error, ProviderRefused | ProviderUnsure):
            log.exception("destroying machine %s failed; it is tried again", machine.name)
        await _note(fleet, machine.id, None, detail=str(error) or type(error).__name__)


async def _keep_boot_log(fleet: Fleet, provider: MachineProvider, machine: Machine) -> None:
    try:
        printed = await provider.boot_log(machine.provider_id)
    except Exception as error:  # no log is worth a machine that goes on costing
        printed = f"(it could not be read: {str(error) or type(error).__name__})"

    def step(transaction: Transaction) -> None:
        row = transaction.tx.machine(machine.id)
        if row is not None:
            transaction.tx.put_machine(
                replace(row, boot_log=printed[-MAX_LOG_CHARS:] or "(nothing was printed)")
            )

    await fleet.act(step)
