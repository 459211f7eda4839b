"""Pools, machines and snapshots for tests: sensible by default, and every field can be said."""

from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.provisioning.growth import Demand, FleetNow
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.offers import ListedMachine, MachineOffer, ProviderSnapshot
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest
from simpletuner_fleet.core.provisioning.upkeep import Upkeep, WorkerFacts
from tests.core.builders import NOW, a_job

SETTLE_S = 60.0


def a_pool(name: str = "cloud", *, deleted_at: float | None = None, **request: Any) -> MachinePool:
    asked = {"provider": "process", "max_machines": 3, **request}
    return MachinePool(
        name=name, request=PoolRequest(**asked), created_at=NOW, created_by="u_1", deleted_at=deleted_at
    )


def a_machine(id: str = "m_1", state: MachineState = MachineState.JOINED, **fields: Any) -> Machine:
    asked_at = fields.pop("asked_at", NOW - 1000.0)
    price = fields.pop("hourly_micros", 2_000_000)
    machine = Machine(
        id=id,
        pool="cloud",
        name=f"stf-f1-{id}",
        state=state,
        created_at=asked_at,
        asked_at=asked_at,
        gpus=1,
        gpu_name="A100",
        vram_gb=80.0,
        offered_micros=price,
        rates=((asked_at, price),),
    )
    if state not in (MachineState.WANTED, MachineState.ASKED):
        machine = replace(machine, provider_id=f"p_{id}")
    if state in (MachineState.JOINED, MachineState.DRAINING):
        machine = replace(machine, joined_at=asked_at + 100.0, worker_id=f"w_{id}")
    return replace(machine, **fields)


def listed(machine: Machine, **fields: Any) -> ListedMachine:
    shown = ListedMachine(provider_id=machine.provider_id or f"p_{machine.id}", name=machine.name)
    return replace(shown, **fields)


def a_snapshot(
    *machines: ListedMachine, at: float = NOW, offers: tuple[MachineOffer, ...] = ()
) -> ProviderSnapshot:
    return ProviderSnapshot(at=at, settle_s=SETTLE_S, machines=machines, offers=offers)


def an_offer(id: str = "o_1", price: int = 2_000_000, **fields: Any) -> MachineOffer:
    offer = MachineOffer(id=id, hourly_micros=price, gpu_name="A100", gpus=1, vram_gb=80.0)
    return replace(offer, **fields)


def working(**fields: Any) -> WorkerFacts:
    facts = WorkerFacts(connected=True, busy=True, idle_since=NOW)
    return replace(facts, **fields)


def idle(since: float = NOW - 700.0) -> WorkerFacts:
    return WorkerFacts(connected=True, busy=False, idle_since=since)


def an_upkeep(
    pool: MachinePool,
    snapshot: ProviderSnapshot | None,
    workers: dict[str, WorkerFacts] | None = None,
    **fields: Any,
) -> Upkeep:
    return Upkeep(pool=pool, now=NOW, snapshot=snapshot, workers=workers or {}, **fields)


def waiting(count: int = 1, id: str = "j_1", **requires: Any) -> Demand:
    return Demand(job=a_job(id, requires=Requirements(**requires)), count=count)


def a_fleet(*demands: Demand, **fields: Any) -> FleetNow:
    return FleetNow(now=NOW, demands=demands, **fields)
