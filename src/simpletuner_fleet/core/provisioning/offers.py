"""Describes what providers offer and list, and checks by the rules of placement which of it a job could use."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Requirements, Target
from simpletuner_fleet.core.money.prices import NO_PRICES, PriceList
from simpletuner_fleet.core.placement.matching import why_never
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.provisioning.machine import Machine
from simpletuner_fleet.core.provisioning.pool import POOL_LABEL, MachinePool
from simpletuner_fleet.core.workers.worker import Connection, Gpu, Worker, WorkerType


class MachineOffer(Struct, frozen=True, kw_only=True):
    """Describes a machine that a provider offers."""

    id: str
    hourly_micros: int
    """For all of it, in millionths of the currency's unit."""
    gpu_name: str = ""
    gpus: int = 0
    """Of all its nodes together."""
    nodes: int = 1
    vram_gb: float = 0.0
    spot: bool = False
    region: str = ""
    accelerator: str = "cuda"
    disk_gb: float = 0.0
    """0: nobody has said."""
    cuda: str = ""
    """The newest version that its driver runs, where that is known."""
    reliability: float | None = None
    """From 0 to 1, where the provider says so."""
    single: bool = False
    """It is one certain machine: whoever takes it leaves none for others."""


class ListedMachine(Struct, frozen=True, kw_only=True):
    """Describes a machine as its provider lists it."""

    provider_id: str
    name: str
    runs: bool = True
    """False: it is there and does not work any more; it may cost all the same."""
    hourly_micros: int | None = None
    note: str | None = None
    """What keeps it from working, in the provider's words; empty: nothing. None: the list does not say such things."""


class ProviderSnapshot(Struct, frozen=True, kw_only=True):
    """Holds the machines and offers that a provider showed, and when it was asked.

    What was done since is not in it.
    """

    at: float
    settle_s: float
    """After so long its list shows what was made before, and does not show what was ended before."""
    machines: tuple[ListedMachine, ...]
    offers: tuple[MachineOffer, ...] = ()
    trouble: str = ""
    """Why its offers could not be had, though its list could."""
    knows_offers: bool = True
    """It was asked for them, and told them: where there are none, none is offered."""


OfferKind = tuple[str, float, str, int, int]
"""All by which offers of one pool become workers that differ in more than their price."""


def kind_of(offer: MachineOffer) -> OfferKind:
    return offer.gpu_name, offer.vram_gb, offer.accelerator, offer.gpus, offer.nodes


def expected_worker(pool: MachinePool, offer: MachineOffer | Machine) -> Worker:
    """Returns the worker that such a machine will become, as far as placement needs it."""
    request = pool.request
    return Worker(
        id=offer.id,
        name=offer.id,
        token_hash="",
        token_created_at=0.0,
        created_at=0.0,
        chosen_type=worker_type_of(pool),
        connection=Connection.CONNECTED,
        labels=worker_labels(pool),
        gpus=tuple(
            Gpu(
                index=index,
                uuid=f"{offer.id}-{index}",
                name=offer.gpu_name,
                vram_gb=offer.vram_gb,
                accelerator_type=offer.accelerator,
                node=index * offer.nodes // offer.gpus,
            )
            for index in range(offer.gpus)
        ),
        trainers=request.trainers,
        max_jobs=max(1, offer.gpus // offer.nodes) if request.idle_s else 1,
        data_limit_bytes=int(request.data_gb * 1e9),
        audience=pool.audience,
    )


def with_price(worker: Worker, hourly_micros: int) -> Worker:
    """Returns the worker with the known price of a machine on its way.

    An offer that is too expensive is reported separately.
    """
    if not worker.gpus or not hourly_micros:
        return worker
    return replace(worker, price_micros=hourly_micros // len(worker.gpus))


def worker_type_of(pool: MachinePool) -> WorkerType:
    return WorkerType.PERSISTENT if pool.request.idle_s else WorkerType.EPHEMERAL


def worker_labels(pool: MachinePool) -> dict[str, str]:
    return {**pool.request.labels, POOL_LABEL: pool.name}


TeamAllowlists = Mapping[str, TeamAllowlist]
"""By team, what of the fleet it may use; a team that is not named may use everything."""


def fits(
    worker: Worker, requires: Requirements, team_allowlists: TeamAllowlists, prices: PriceList = NO_PRICES
) -> bool:
    """Tells whether the worker fits the job, with exactly as many nodes: idle nodes are paid for, too.

    No machine is brought, or waited for, that has more than the job asks for.
    """
    team_allowlist = team_allowlists.get(requires.team)
    if worker.nodes != requires.nodes:
        return False
    return requires.target is not Target.LOCAL and why_never(worker, requires, team_allowlist, prices) is None


def is_eligible(pool: MachinePool, offer: MachineOffer) -> bool:
    """Tells whether the pool takes such machines at all, whatever they cost."""
    request = pool.request
    if (offer.spot and request.market == "on_demand") or (not offer.spot and request.market == "spot"):
        return False
    if request.regions and offer.region not in request.regions:
        return False
    name = offer.gpu_name.casefold()
    return not request.kinds or any(fnmatchcase(name, kind.casefold()) for kind in request.kinds)


def preference_of(
    pool: MachinePool, offer: MachineOffer, interruptions: int = 0
) -> tuple[bool, int, int, str]:
    """Returns a sort key, the best offer first: spot where it is preferred, then the cheapest, then the smallest.

    A job whose machines were taken away too often goes on where that does not happen, if such a machine can be had.
    """
    request = pool.request
    if request.market != "spot_first":
        return (False, offer.hourly_micros, offer.gpus, offer.id)
    had_enough = interruptions >= request.spot_tries
    return (offer.spot if had_enough else not offer.spot, offer.hourly_micros, offer.gpus, offer.id)
