"""Carries out a decision at a provider: creates a machine, or destroys one.

The decision is written before anything is asked for. A request without an answer is never repeated: the next list of
the provider shows whether the machine is there.
"""

import logging

from msgspec.structs import replace

from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.core.money.amounts import typed_amount
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.provisioning.machine import (
    MAX_DETAIL_CHARS,
    MAX_LOG_CHARS,
    Machine,
    MachineEndReason,
    MachineInput,
    MachineState,
    at_price,
    moved,
    worker_price,
)
from simpletuner_fleet.core.provisioning.offers import MachineOffer, worker_type_of
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.core.workers.worker import WorkerType
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.machines.machine_rows import save_machine
from simpletuner_fleet.providers.contract import (
    MachineOrder,
    MachineProvider,
    ProviderRefused,
    ProviderUnsure,
)

log = logging.getLogger(__name__)

LEAVES_AFTER_S = 900.0
"""A machine whose orchestrator does not answer for so long ends its worker by itself."""
NEVER_JOINED = (MachineEndReason.BOOT_DEADLINE, MachineEndReason.LEFT)
"""What such a machine has printed says why."""


async def ask_once(
    fleet: Fleet, provider: MachineProvider, pool: MachinePool, machine_id: str, joining: dict[str, str]
) -> None:
    """Writes that the provider is asked, asks it, and writes what it said. `joining` tells workers how to reach us."""
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
    if (price := worker_price(machine)) is not None:
        given["SIMPLETUNER_WORKER_PRICE"] = typed_amount(price)
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
        nodes=machine.nodes,
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
    """Writes what the provider said. Meanwhile the machine may have joined, or may be ending."""

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
            why = MachineEndReason.REFUSED if machine_input is MachineInput.REFUSE else ""
            after = moved(after, machine_input, transaction.now, why)
        if after != machine:
            save_machine(transaction, machine, after)

    await fleet.act(step)


async def destroy_once(fleet: Fleet, provider: MachineProvider, machine: Machine) -> None:
    """Asks the provider to destroy the machine; every round repeats it until the list does not show it any more."""
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
