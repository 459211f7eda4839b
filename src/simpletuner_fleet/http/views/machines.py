"""Defines the JSON form of pools, machines and offers. Money is in millionths of the currency's unit."""

from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.core.money.amounts import amount_text
from simpletuner_fleet.core.provisioning.machine import Machine
from simpletuner_fleet.core.provisioning.money import cost, forecast_of_month, spending
from simpletuner_fleet.core.provisioning.offers import MachineOffer
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest
from simpletuner_fleet.core.provisioning.useless import Useless
from simpletuner_fleet.core.provisioning.waiting import machine_text
from simpletuner_fleet.engine.memory.organisation import Organisation
from simpletuner_fleet.http.edge.routes import rfc3339


class PoolView(Struct, kw_only=True):
    name: str
    request: PoolRequest
    created_at: str | None
    created_by: str
    deleted: bool
    """It was deleted, and stays until its last machine is gone."""
    machines: int
    currency: str
    hourly_micros: int
    """What its machines cost an hour now."""
    today_micros: int
    this_month_micros: int
    month_forecast_micros: int
    """What this month will have cost if nothing changes."""
    trouble: str
    """Why its provider could not be looked at; empty where it could."""
    teams: list[str]
    """The names of the teams whose jobs may use it."""
    people: list[str]
    """The names of those whose jobs may use it besides. Neither: everybody's jobs may."""


class PoolsView(Struct, kw_only=True):
    pools: list[PoolView]
    hands_off: bool
    """The database was restored: nothing is brought or destroyed until somebody says so."""


class MachineView(Struct, kw_only=True):
    id: str
    pool: str
    name: str
    status: str
    hardware: str
    currency: str
    hourly_micros: int
    cost_micros: int
    """What it has cost so far."""
    spot: bool
    region: str
    provider_id: str
    worker_id: str | None
    created_at: str | None
    asked_at: str | None
    joined_at: str | None
    gone_at: str | None
    why: str
    """The reason for which it is not wanted any more; empty where it is."""
    detail: str
    """What the provider said to it."""
    boot_log: str
    """What it printed, where it did not join in time."""
    useless: str
    """It costs and does nothing: idle, not_joined, silent, not_gone; empty where it works or costs nothing."""
    useless_since: str | None


class MachinesView(Struct, kw_only=True):
    machines: list[MachineView]


class OfferView(Struct, kw_only=True):
    id: str
    pool: str
    gpu_name: str
    gpus: int
    """Of all its nodes together."""
    nodes: int
    vram_gb: float
    currency: str
    hourly_micros: int
    """For all of it."""
    price: str
    """The same as people read it."""
    spot: bool
    region: str
    disk_gb: float
    """0: nobody has said."""
    cuda: str
    """The newest version that it runs, or the least that is asked for; empty: nobody has said."""
    reliability: float | None
    """From 0 to 1, where the provider says so."""
    eligible: bool
    """Whether the pool takes it, whatever it costs."""


class PoolCheckView(Struct, kw_only=True):
    ok: bool
    trouble: str = ""
    """What the provider, or the way to it, said; empty where it answered."""
    currency: str
    machines: int = 0
    """How many of ours its list shows, or might be ours."""
    offers: int = 0
    eligible: int = 0
    """How many of the offers are of the kinds that the pool takes."""
    cheapest_micros: int | None = None
    """What an hour of the cheapest of those costs."""


class OffersView(Struct, kw_only=True):
    offers: list[OfferView]


def pool_view(
    pool: MachinePool, machines: Sequence[Machine], now: float, organisation: Organisation
) -> PoolView:
    own = [machine for machine in machines if machine.pool == pool.name]
    spent, names = spending(own, now), organisation.names
    return PoolView(
        name=pool.name,
        request=pool.request,
        created_at=rfc3339(pool.created_at),
        created_by=pool.created_by,
        deleted=pool.deleted_at is not None,
        machines=spent.machines,
        currency=organisation.prices.currency,
        hourly_micros=spent.hourly_micros,
        today_micros=spent.today_micros,
        this_month_micros=spent.month_micros,
        month_forecast_micros=forecast_of_month(own, now),
        trouble=pool.trouble,
        teams=[names.get(one, one) for one in pool.request.teams],
        people=[names.get(one, one) for one in pool.request.people],
    )


def machine_view(machine: Machine, now: float, currency: str, idleness: Useless | None = None) -> MachineView:
    return MachineView(
        id=machine.id,
        pool=machine.pool,
        name=machine.name,
        status=machine.state,
        hardware=machine_text(machine),
        currency=currency,
        hourly_micros=machine.hourly_micros,
        cost_micros=cost(machine, now),
        spot=machine.spot,
        region=machine.region,
        provider_id=machine.provider_id,
        worker_id=machine.worker_id or None,
        created_at=rfc3339(machine.created_at),
        asked_at=rfc3339(machine.asked_at),
        joined_at=rfc3339(machine.joined_at),
        gone_at=rfc3339(machine.gone_at),
        why=machine.why,
        detail=machine.detail,
        boot_log=machine.boot_log,
        useless=idleness.use if idleness else "",
        useless_since=rfc3339(idleness.since) if idleness else None,
    )


def offer_view(pool: MachinePool, offer: MachineOffer, currency: str, *, eligible: bool) -> OfferView:
    return OfferView(
        id=offer.id,
        pool=pool.name,
        gpu_name=offer.gpu_name,
        gpus=offer.gpus,
        nodes=offer.nodes,
        vram_gb=offer.vram_gb,
        currency=currency,
        hourly_micros=offer.hourly_micros,
        price=amount_text(offer.hourly_micros, currency),
        spot=offer.spot,
        region=offer.region,
        disk_gb=offer.disk_gb,
        cuda=offer.cuda,
        reliability=offer.reliability,
        eligible=eligible,
    )
