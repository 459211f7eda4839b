"""Decides whether to bring machines: only for jobs that no existing or booting machine would take sooner."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from msgspec import Struct, field

from simpletuner_fleet.core.jobs.job import Job
from simpletuner_fleet.core.money.prices import NO_PRICES, PriceList
from simpletuner_fleet.core.placement.forecast import RunningJob, freed_in_order
from simpletuner_fleet.core.placement.matching import why_never, why_not_paid
from simpletuner_fleet.core.placement.ordering import limit_reached
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.core.provisioning.machine import (
    FAILURES,
    ON_ITS_WAY,
    Machine,
    MachineEndReason,
    MachineState,
)
from simpletuner_fleet.core.provisioning.money import Spending, ceiling_reached, spending_towards
from simpletuner_fleet.core.provisioning.offers import (
    MachineOffer,
    OfferKind,
    ProviderSnapshot,
    TeamAllowlists,
    expected_worker,
    fits,
    is_eligible,
    kind_of,
    preference_of,
    with_price,
)
from simpletuner_fleet.core.provisioning.pool import MachinePool, NoMachine, PoolCeiling
from simpletuner_fleet.core.workers.worker import Worker

USUAL_BOOT_S = 120.0
BOOTS_REMEMBERED = 10
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 3600.0
MOST_DOUBLINGS = 20
LINES_TOLD = 32
TOLD_FIRST = (
    *(PoolCeiling.COUNT, PoolCeiling.HOURLY, PoolCeiling.DAILY, PoolCeiling.MONTHLY),
    PoolCeiling.PRICE,
)
"""Of several ceilings, the one that is told."""


class Demand(Struct, frozen=True, kw_only=True):
    """Describes the jobs of one queue that wait for a worker: the first of them, and their number."""

    job: Job
    count: int


class FleetNow(Struct, frozen=True, kw_only=True):
    """Describes the fleet as placement knows it at this moment."""

    now: float
    demands: Sequence[Demand]
    """In the order in which their first jobs stand."""
    busy: Sequence[tuple[Worker, Sequence[RunningJob]]] = ()
    limits: Limits = Limits()
    running: int = 0
    running_by_owner: Mapping[str, int] = {}
    running_by_team: Mapping[str, int] = {}
    team_allowlists: TeamAllowlists = {}
    lead_s: float = 0.0
    listening_since: float = 0.0
    """When this orchestrator began."""
    prices: PriceList = NO_PRICES
    arriving: frozenset[str] = frozenset()
    """Ids of machines that have joined and whose workers are about to connect."""
    under_way: frozenset[str] = frozenset()
    """Ids of machines for which a call to their provider is under way, or waits for its turn."""
    being_looked_at: frozenset[str] = frozenset()
    """Names of pools whose providers have not answered yet, and may still: what is known of them stands."""
    uncounted: frozenset[str] = frozenset()
    """Names of pools that may have machines of which nothing can be read: they bring no further ones."""

    def busy_until(self, at: float) -> list[tuple[Worker, Sequence[RunningJob]]]:
        """Returns the busy workers on which a job ends until then."""
        return [
            (worker, running)
            for worker, running in self.busy
            if any(one.ends_at is not None and one.ends_at <= at for one in running)
        ]

    def free_for(self, job: Job, busy: Sequence[tuple[Worker, Sequence[RunningJob]]], until: float) -> int:
        """Returns how many of these busy workers will have room for such a job until then."""
        allowlist = self.team_allowlists.get(job.team)
        fitting = (
            (worker, running)
            for worker, running in busy
            if why_never(worker, job.requires, allowlist, self.prices) is None
        )
        freed = freed_in_order(job.requires, fitting, self.now)
        return sum(max(self.now, last.ends_at or self.now) <= until for last, _ in freed)


class Wanted(Struct, frozen=True, kw_only=True):
    pool: str
    offer: MachineOffer
    for_job: str


class Growth(Struct):
    wanted: list[Wanted] = field(default_factory=list)
    no_machine: dict[str, dict[str, NoMachine]] = field(default_factory=dict)
    """By pool and line."""
    needless: set[str] = field(default_factory=set)
    """Ids of machines that are wanted and not asked for yet, and that nothing needs any more."""


class _Room(Struct):
    """Holds a machine on its way, and what is left of it for waiting jobs."""

    worker: Worker
    gpus: int
    slots: int
    is_needed: bool = False

    def take(self, job: Job, fleet: FleetNow) -> bool:
        requires = job.requires
        if self.slots < 1 or self.gpus < requires.gpus:
            return False
        if not fits(self.worker, requires, fleet.team_allowlists, fleet.prices):
            return False
        self.slots -= 1
        self.gpus -= job.requires.gpus
        self.is_needed = True
        return True


class _Market(Struct):
    """Holds one pool with what its provider offers, and the money that is left."""

    pool: MachinePool
    snapshot: ProviderSnapshot
    spent: Spending
    paused_until: float
    boot_s: float
    is_counted: bool
    """False: a machine, or a bill, that may be the pool's cannot be read, and nobody knows what one more would pass."""
    worker_of: dict[OfferKind, Worker] = field(default_factory=dict)
    """What each kind of machine that the pool takes will become, whatever it costs: of one kind there may be hundreds."""
    ranked: dict[bool, list[MachineOffer]] = field(default_factory=dict)
    """The offers that the pool takes, the best first: for jobs whose machines were taken away often, and for others."""
    usable: dict[str, list[MachineOffer] | NoMachine] = field(default_factory=dict)
    """By job: the offers that it could use and pay, the best first, or why there is none."""
    taken: set[str] = field(default_factory=set)
    """The single offers that are wanted already."""

    def best_first(self, interruptions: int) -> list[MachineOffer]:
        had_enough = interruptions >= self.pool.request.spot_tries
        if had_enough not in self.ranked:
            eligible = (offer for offer in self.snapshot.offers if is_eligible(self.pool, offer))
            order = sorted(eligible, key=lambda offer: preference_of(self.pool, offer, interruptions))
            self.ranked[had_enough] = order
            for offer in order:
                if kind_of(offer) not in self.worker_of:
                    self.worker_of[kind_of(offer)] = expected_worker(self.pool, offer)
        return self.ranked[had_enough]


def grow(
    pools: Sequence[MachinePool],
    snapshots: Mapping[str, ProviderSnapshot],
    machines: Mapping[str, Sequence[Machine]],
    fleet: FleetNow,
) -> Growth:
    """Decides which machines to bring; `machines` are those of each pool, with the ones gone this month."""
    growth = Growth()
    markets = [
        _Market(
            pool=pool,
            snapshot=snapshots[pool.name],
            spent=spending_towards(pool, machines[pool.name], fleet.now),
            paused_until=paused_until(machines[pool.name]),
            boot_s=usual_boot_s(machines[pool.name]),
            is_counted=pool.name not in fleet.uncounted,
            taken=_singles_asked_for(snapshots[pool.name], machines[pool.name], fleet),
        )
        for pool in pools
        if pool.brings_machines and pool.name in snapshots
    ]
    if not markets:
        return growth
    room_of = {
        machine.id: _room(pool, machine)
        for pool in pools
        for machine in sorted(machines[pool.name], key=lambda one: one.state is MachineState.WANTED)
        if machine.state in ON_ITS_WAY or machine.id in fleet.arriving
    }
    _serve(fleet, markets, list(room_of.values()), growth)
    for market in markets:
        if not market.is_counted:
            continue
        own = machines[market.pool.name]
        _keep_least(market, own, fleet, growth)
        wanted = [machine.id for machine in own if machine.state is MachineState.WANTED]
        needless = [id for id in wanted if not room_of[id].is_needed]
        growth.needless |= set(needless[: max(0, market.spent.machines - market.pool.request.min_machines)])
    return growth


def _singles_asked_for(snapshot: ProviderSnapshot, machines: Sequence[Machine], fleet: FleetNow) -> set[str]:
    """Returns the single offers that are shown still, since the call that takes them is not over."""
    asked = {one.offer_id for one in machines if one.state in ON_ITS_WAY and one.id in fleet.under_way}
    return {offer.id for offer in snapshot.offers if offer.single and offer.id in asked}


def _serve(fleet: FleetNow, markets: list[_Market], rooms: list[_Room], growth: Growth) -> None:
    planned: Counter[str] = Counter()
    ahead = 0
    soon: dict[float, list[tuple[Worker, Sequence[RunningJob]]]] = {}
    for demand in fleet.demands:
        job = demand.job
        for_it = [market for market in markets if market.pool.is_for(job)]
        booted_at = fleet.now + min((market.boot_s for market in for_it), default=inf)
        if booted_at not in soon:
            soon[booted_at] = fleet.busy_until(booted_at)
        free = fleet.free_for(job, soon[booted_at], booted_at)
        for _ in range(demand.count):
            if _is_limited(fleet, job, planned):
                break
            if ahead < free:
                ahead += 1
            elif not any(room.take(job, fleet) for room in rooms) and not _bring(
                fleet, job, for_it, rooms, growth
            ):
                break
            planned += Counter({"": 1, f"owner {job.owner}": 1, f"team {job.team}": 1})


def _is_limited(fleet: FleetNow, job: Job, planned: Counter[str]) -> bool:
    """Tells whether a limit would keep one more job from running after those that machines are brought for."""
    of_owner = fleet.running_by_owner.get(job.owner, 0) + planned[f"owner {job.owner}"]
    of_team = fleet.running_by_team.get(job.team, 0) + planned[f"team {job.team}"] if job.team else None
    return limit_reached(fleet.limits, fleet.running + planned[""], of_owner, of_team) is not None


def _bring(fleet: FleetNow, job: Job, markets: list[_Market], rooms: list[_Room], growth: Growth) -> bool:
    """Orders the cheapest machine that fits; where there is none, it notes for each pool why not.

    `markets` are those that the job may use: of others it is told nothing.
    """
    best: tuple[tuple[Any, ...], _Market, MachineOffer] | None = None
    refusals: list[tuple[_Market, NoMachine]] = []
    for market in markets:
        if not market.snapshot.knows_offers:
            continue
        offer = _best_offer(market, job, fleet)
        if isinstance(offer, NoMachine):
            refusals.append((market, offer))
            continue
        key = (*preference_of(market.pool, offer, job.interruptions), market.pool.name)
        if best is None or key < best[0]:
            best = (key, market, offer)
    if best is None:
        for market, refusal in refusals:
            lines = growth.no_machine.setdefault(market.pool.name, {})
            if len(lines) < LINES_TOLD:
                lines[job.line] = refusal
        return False
    _, market, offer = best
    _want(market, offer, job.id, growth)
    room = _room(market.pool, offer)
    room.take(job, fleet)
    rooms.append(room)
    return True


def _want(market: _Market, offer: MachineOffer, job_id: str, growth: Growth) -> None:
    growth.wanted.append(Wanted(pool=market.pool.name, offer=offer, for_job=job_id))
    if offer.single:
        market.taken.add(offer.id)
    spent = market.spent
    market.spent = Spending(
        machines=spent.machines + 1,
        hourly_micros=spent.hourly_micros + offer.hourly_micros,
        today_micros=spent.today_micros,
        month_micros=spent.month_micros,
    )


def _best_offer(market: _Market, job: Job, fleet: FleetNow) -> MachineOffer | NoMachine:
    pool = market.pool
    if not market.is_counted:
        return NoMachine(code=Code.MACHINE_UNREADABLE, params={"pool": pool.name})
    if job.id not in market.usable:
        market.usable[job.id] = _usable_offers(market, job, fleet)
    usable = market.usable[job.id]
    if isinstance(usable, NoMachine):
        return usable
    if fleet.now < market.paused_until:
        params = {"pool": pool.name, "until": market.paused_until}
        return NoMachine(code=Code.MACHINES_FAILED, params=params)
    reached: PoolCeiling | None = None
    for offer in usable:
        if offer.id in market.taken:
            continue
        ceiling = ceiling_reached(pool, market.spent, offer.hourly_micros, fleet.lead_s)
        if ceiling is None:
            return offer
        if reached is None or TOLD_FIRST.index(ceiling) < TOLD_FIRST.index(reached):
            reached = ceiling
    if reached is None:
        return _none_offered(pool, job)
    params = {
        "pool": pool.name,
        "ceiling": str(reached),
        "hourly_micros": min(offer.hourly_micros for offer in usable),
    }
    return NoMachine(code=Code.MACHINE_CEILING, params=params)


def _usable_offers(market: _Market, job: Job, fleet: FleetNow) -> list[MachineOffer] | NoMachine:
    """Returns the offers that the job could use and pay, the best first, or why there is none."""
    pool, asked = market.pool, job.requires.at_any_cost
    offers = market.best_first(job.interruptions)
    kinds = {kind for kind, worker in market.worker_of.items() if fits(worker, asked, fleet.team_allowlists)}
    fitting = [offer for offer in offers if kind_of(offer) in kinds] if kinds else []
    if not fitting:
        return _none_offered(pool, job)
    allowed = job.requires.max_price_micros
    cheapest = min(offer.hourly_micros for offer in fitting)
    if allowed is not None and cheapest > allowed:
        params = {"pool": pool.name, "hourly_micros": cheapest, "allowed_micros": allowed}
        return NoMachine(code=Code.MACHINE_TOO_DEAR, params=params)
    if allowed is not None:
        fitting = [offer for offer in fitting if offer.hourly_micros <= allowed]
    if job.requires.room_micros is not None:
        fitting = [offer for offer in fitting if _can_be_paid(market, offer, job, fleet)]
    if not fitting:
        left = {"pool": pool.name, "hourly_micros": cheapest, "left_micros": job.requires.room_micros}
        return NoMachine(code=Code.MACHINE_COST_LIMIT, params=left)
    return fitting


def _none_offered(pool: MachinePool, job: Job) -> NoMachine:
    params = {"pool": pool.name, "gpus": job.requires.gpus, "min_vram_gb": job.requires.min_vram_gb}
    return NoMachine(code=Code.NO_MACHINE_OFFERED, params=params)


def _can_be_paid(market: _Market, offer: MachineOffer, job: Job, fleet: FleetNow) -> bool:
    """Tells whether what is left of the job's ceiling is enough for a machine at this price."""
    worker = with_price(market.worker_of[kind_of(offer)], offer.hourly_micros)
    return why_not_paid(worker, job.requires, fleet.team_allowlists.get(job.team), fleet.prices) is None


def _keep_least(market: _Market, machines: Sequence[Machine], fleet: FleetNow, growth: Growth) -> None:
    pool = market.pool
    missing = pool.request.min_machines - market.spent.machines
    if missing <= 0 or fleet.now < market.paused_until:
        return
    eligible = market.best_first(0)
    for _ in range(missing):
        affordable = [
            offer
            for offer in eligible
            if offer.id not in market.taken
            and ceiling_reached(pool, market.spent, offer.hourly_micros, fleet.lead_s) is None
        ]
        if not affordable:
            return
        _want(market, min(affordable, key=lambda offer: preference_of(pool, offer)), "", growth)


def _room(pool: MachinePool, machine: Machine | MachineOffer) -> _Room:
    worker = with_price(expected_worker(pool, machine), machine.hourly_micros)
    return _Room(worker, machine.gpus, worker.max_jobs)


def usual_boot_s(machines: Sequence[Machine]) -> float:
    """Returns the median time that the last machines of a pool took to join."""
    took = [
        machine.joined_at - machine.asked_at
        for machine in sorted(machines, key=lambda one: one.joined_at or 0.0)
        if machine.joined_at is not None and machine.asked_at is not None
    ][-BOOTS_REMEMBERED:]
    return sorted(took)[len(took) // 2] if took else USUAL_BOOT_S


def paused_until(machines: Sequence[Machine]) -> float:
    """Returns when a pool whose last machines never came may ask again: each failed round doubles the pause.

    What was wanted in one round failed once, however many machines that were.
    """
    over = [machine for machine in machines if machine.gone_at is not None or machine.joined_at is not None]
    over.sort(key=lambda machine: machine.gone_at or machine.joined_at or 0.0, reverse=True)
    rounds, last = set[float](), 0.0
    for machine in over:
        if machine.joined_at is not None:
            break
        if machine.why in FAILURES or machine.why in (MachineEndReason.VANISHED, MachineEndReason.LEFT):
            rounds.add(machine.created_at)
            last = max(last, machine.gone_at or 0.0)
    if not rounds:
        return 0.0
    return last + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(len(rounds) - 1, MOST_DOUBLINGS))
