"""Decides what becomes of existing machines, by the provider's list, their workers and the money.

Unknown is active: a machine whose worker is not heard is not idle. But unknown costs: it is gone only once the list has
not shown it for long enough, and as long as its worker is heard it is there, whatever the list says.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.provisioning.idleness import idle_since
from simpletuner_fleet.core.provisioning.machine import (
    IN_USE,
    MAX_DETAIL_CHARS,
    ON_ITS_WAY,
    Machine,
    MachineEndReason,
    MachineInput,
    MachineState,
    at_price,
    moved,
)
from simpletuner_fleet.core.provisioning.offers import ListedMachine, ProviderSnapshot
from simpletuner_fleet.core.provisioning.pool import MachinePool
from simpletuner_fleet.core.workers.worker import Connection, Worker, WorkerType

HEARD_AGAIN_WITHIN_S = 120.0
"""After a start of the orchestrator nobody who was awaited before it is given up sooner: they could not reach it."""
SHORTEST_IDLE_S = 60.0
"""So long a machine that takes one job waits for it: an offer may have to be made twice."""


class WorkerFacts(Struct, frozen=True, kw_only=True):
    """Holds what is known of a machine's worker."""

    connected: bool
    busy: bool
    """It has a job, or results to bring."""
    idle_since: float
    offline_since: float | None = None
    leaves: bool = False
    """It has left, and is not expected back: it takes one job only, or its machine was to be taken away."""


def facts_of(machine: Machine, worker: Worker, newest: Sequence[Attempt], *, busy: bool) -> WorkerFacts:
    """Returns the facts; `newest` are the last attempts given to the worker, and do not matter while it is busy."""
    joined_at = machine.joined_at or machine.created_at
    heard_last = worker.offline_since or worker.registered_at or joined_at
    connected = worker.connection is Connection.CONNECTED
    goes = worker.worker_type is WorkerType.EPHEMERAL or worker.interruption is not None
    return WorkerFacts(
        connected=connected,
        busy=busy,
        idle_since=idle_since(joined_at, newest),
        offline_since=None if connected else heard_last,
        leaves=goes and worker.connection is Connection.OFFLINE,
    )


class Upkeep(Struct, frozen=True, kw_only=True):
    """Describes one pool at one moment, with all that decides what becomes of its machines."""

    pool: MachinePool
    now: float
    snapshot: ProviderSnapshot | None
    """None: the provider did not answer, so that nothing is known of what it has."""
    workers: Mapping[str, WorkerFacts]
    """By worker id."""
    listening_since: float = 0.0
    """When this orchestrator began."""
    budget_over: bool = False
    lead_s: float = 0.0
    """So long before its end a machine is told to stop."""
    under_way: frozenset[str] = frozenset()
    """Ids of the machines for which a call to the provider is under way, or waits for its turn."""

    def may_give_up(self, since: float) -> bool:
        """Tells whether a worker awaited since then could have been heard all the time, or again for long enough."""
        return since >= self.listening_since or self.now - self.listening_since >= HEARD_AGAIN_WITHIN_S


def tended(machines: Sequence[Machine], upkeep: Upkeep, taken: frozenset[str] = frozenset()) -> list[Machine]:
    """Returns the pool's machines after this look; `taken` are the provider's ids of all known machines."""
    shown = _Shown.of(upkeep.snapshot, taken) if upkeep.snapshot else None
    seen = [_compared(machine, upkeep, shown) for machine in machines]
    spare = sum(machine.is_live for machine in seen) - upkeep.pool.request.min_machines
    after: list[Machine] = []
    for machine in seen:
        judged = _judged(machine, upkeep, may_go_idle=spare > 0)
        if judged.why == MachineEndReason.IDLE and machine.why != MachineEndReason.IDLE:
            spare -= 1
        after.append(judged)
    return _within_the_hourly_limit(after, upkeep)


def _within_the_hourly_limit(machines: list[Machine], upkeep: Upkeep) -> list[Machine]:
    """Ends machines, the least useful first, where prices have risen above the hourly limit.

    A machine on its way out still costs, but will not: no other is ended because of it.
    """
    limit = upkeep.pool.request.max_hourly_micros
    staying = [machine for machine in machines if machine.state in ON_ITS_WAY | {MachineState.JOINED}]
    too_much = 0 if limit is None else sum(machine.hourly_micros for machine in staying) - limit
    ended: dict[str, Machine] = {}
    for machine in sorted(staying, key=lambda one: _usefulness(one, upkeep)):
        if too_much <= 0:
            break
        if machine.hourly_micros:
            ended[machine.id] = _over_budget(machine, upkeep)
            too_much -= machine.hourly_micros
    return [ended.get(machine.id, machine) for machine in machines]


def _usefulness(machine: Machine, upkeep: Upkeep) -> tuple[int, float]:
    """Returns a sort key, the least useful first: not asked for, not joined, then without a job, then the newest."""
    worker = upkeep.workers.get(machine.worker_id)
    at_rest = worker is not None and worker.connected and not worker.busy
    if machine.state in ON_ITS_WAY:
        return (0 if machine.state is MachineState.WANTED else 1), -machine.created_at
    return (2 if at_rest else 3), -machine.created_at


def _over_budget(machine: Machine, upkeep: Upkeep) -> Machine:
    if machine.state is MachineState.WANTED:
        return moved(machine, MachineInput.DROP, upkeep.now, MachineEndReason.BUDGET)
    if machine.state in ON_ITS_WAY:
        return moved(machine, MachineInput.DESTROY, upkeep.now, MachineEndReason.BUDGET)
    return _drained(machine, upkeep, MachineEndReason.BUDGET)


def strays(snapshot: ProviderSnapshot, known: Iterable[Machine], beginning: str) -> list[ListedMachine]:
    """Returns machines that carry our name and belong to nobody; those with another name are never touched."""
    rows = [machine for machine in known if machine.is_live]
    ids = {machine.provider_id for machine in rows if machine.provider_id}
    names = {machine.name for machine in rows if not machine.provider_id}
    unknown: list[ListedMachine] = []
    for listed in snapshot.machines:
        if not listed.name.startswith(beginning) or listed.provider_id in ids:
            continue
        if listed.name in names:
            names.discard(listed.name)
        else:
            unknown.append(listed)
    return unknown


class _Shown(Struct, frozen=True):
    """Indexes the provider's list of machines by id and by name."""

    by_id: dict[str, ListedMachine]
    by_name: dict[str, ListedMachine]
    """Those that no known machine has the id of; of several with one name the first."""

    @classmethod
    def of(cls, snapshot: ProviderSnapshot, taken: frozenset[str]) -> "_Shown":
        in_order = sorted(snapshot.machines, key=lambda one: one.provider_id, reverse=True)
        nobodys = {one.name: one for one in in_order if one.provider_id not in taken}
        return cls({one.provider_id: one for one in snapshot.machines}, nobodys)

    def listed(self, machine: Machine) -> ListedMachine | None:
        if machine.provider_id:
            return self.by_id.get(machine.provider_id)
        return self.by_name.get(machine.name)


def _compared(machine: Machine, upkeep: Upkeep, shown: _Shown | None) -> Machine:
    snapshot = upkeep.snapshot
    if snapshot is None or shown is None or machine.state is MachineState.WANTED:
        return machine
    listed = shown.listed(machine)
    if listed is None:
        return _missed(machine, upkeep, snapshot)
    price = machine.hourly_micros if listed.hourly_micros is None else listed.hourly_micros
    ended_at = None if listed.runs else machine.ended_at or upkeep.now
    known = replace(machine, provider_id=listed.provider_id, missing_since=None, ended_at=ended_at)
    known = at_price(known, price, upkeep.now)
    if listed.note is not None and known.state is not MachineState.DESTROYING:
        known = replace(known, detail=listed.note[:MAX_DETAIL_CHARS])
    if known.state is MachineState.ASKED:
        return moved(known, MachineInput.APPEAR, upkeep.now)
    if known.state is MachineState.GONE and _is_news(known, snapshot):
        return moved(known, MachineInput.APPEAR, upkeep.now, MachineEndReason.STRAY)
    return known if known.is_live else machine


def _is_news(machine: Machine, snapshot: ProviderSnapshot) -> bool:
    return machine.gone_at is not None and snapshot.at > machine.gone_at


def _missed(machine: Machine, upkeep: Upkeep, snapshot: ProviderSnapshot) -> Machine:
    if not machine.is_live or machine.asked_at is None or snapshot.at <= machine.asked_at:
        return machine
    if not machine.provider_id and machine.id in upkeep.under_way:
        return machine  # it may be made at any moment, however long that takes
    worker = upkeep.workers.get(machine.worker_id)
    if machine.state in IN_USE and worker is not None and worker.connected:
        return machine
    missing = replace(machine, missing_since=machine.missing_since or snapshot.at)
    since = max(missing.missing_since or snapshot.at, machine.asked_at)
    if snapshot.at - since < snapshot.settle_s:
        return missing
    seen = machine.provider_id or machine.joined_at is not None
    return moved(
        missing,
        MachineInput.VANISH,
        upkeep.now,
        MachineEndReason.VANISHED if seen else MachineEndReason.NEVER_MADE,
    )


def _judged(machine: Machine, upkeep: Upkeep, *, may_go_idle: bool) -> Machine:
    now = upkeep.now
    if machine.state is MachineState.WANTED:
        # It should have been asked for in the round that wanted it: whoever needs one now wants it anew.
        return machine if _has_its_turn(machine, upkeep) else dropped(machine, now)
    if machine.state in ON_ITS_WAY:
        why = _why_not_awaited(machine, upkeep)
        return moved(machine, MachineInput.DESTROY, now, why) if why else machine
    if machine.state is MachineState.JOINED:
        return _joined(machine, upkeep, may_go_idle)
    if machine.state is MachineState.DRAINING:
        return _draining(machine, upkeep)
    return machine


def dropped(machine: Machine, now: float) -> Machine:
    return moved(machine, MachineInput.DROP, now, MachineEndReason.NOT_NEEDED)


def _has_its_turn(machine: Machine, upkeep: Upkeep) -> bool:
    """Tells whether a machine that is wanted is still to be asked for, as soon as calls before its own are over."""
    can_grow = upkeep.snapshot is not None and upkeep.pool.brings_machines
    return can_grow and machine.id in upkeep.under_way and _why_not_awaited(machine, upkeep) is None


def _why_not_awaited(machine: Machine, upkeep: Upkeep) -> MachineEndReason | None:
    request = upkeep.pool.request
    if upkeep.pool.deleted_at is not None:
        return MachineEndReason.POOL_DELETED
    if upkeep.budget_over:
        return MachineEndReason.BUDGET
    if request.max_price_micros is not None and machine.hourly_micros > request.max_price_micros:
        return MachineEndReason.PRICE
    if machine.ended_at is not None:
        return MachineEndReason.LEFT
    asked_at = machine.asked_at or machine.created_at
    if upkeep.now - asked_at >= request.boot_s and upkeep.may_give_up(asked_at):
        return MachineEndReason.BOOT_DEADLINE
    return None


def _joined(machine: Machine, upkeep: Upkeep, may_go_idle: bool) -> Machine:
    now, worker = upkeep.now, upkeep.workers.get(machine.worker_id)
    if worker is None:
        return moved(machine, MachineInput.DESTROY, now, MachineEndReason.WORKER_DELETED)
    if _is_lost(machine, worker, upkeep):
        why = (
            MachineEndReason.LEFT if worker.leaves or machine.ended_at is not None else MachineEndReason.LOST
        )
        return moved(machine, MachineInput.DESTROY, now, why)
    why_drained = _why_drained(machine, worker, upkeep, may_go_idle)
    return machine if why_drained is None else _drained(machine, upkeep, why_drained)


def _drained(machine: Machine, upkeep: Upkeep, why: MachineEndReason) -> Machine:
    stops = why is MachineEndReason.BUDGET and upkeep.pool.request.over_budget == "stop"
    stop_by = upkeep.now + upkeep.lead_s if stops else None
    return _draining(replace(moved(machine, MachineInput.DRAIN, upkeep.now, why), stop_by=stop_by), upkeep)


def _is_lost(machine: Machine, worker: WorkerFacts, upkeep: Upkeep) -> bool:
    """Tells whether the machine is lost; one that holds a job is not, since it alone may have the results.

    Its job is given away before that.
    """
    if worker.connected or worker.busy or worker.offline_since is None:
        return False
    if worker.leaves or machine.ended_at is not None:
        return True
    silent_s = upkeep.now - worker.offline_since
    return silent_s >= upkeep.pool.request.boot_s and upkeep.may_give_up(worker.offline_since)


def _why_drained(
    machine: Machine, worker: WorkerFacts, upkeep: Upkeep, may_go_idle: bool
) -> MachineEndReason | None:
    request = upkeep.pool.request
    idle = worker.connected and not worker.busy
    if upkeep.pool.deleted_at is not None:
        return MachineEndReason.POOL_DELETED
    if upkeep.budget_over:
        return MachineEndReason.BUDGET
    if request.max_price_micros is not None and machine.hourly_micros > request.max_price_micros:
        return MachineEndReason.PRICE
    idle_s = request.idle_s or SHORTEST_IDLE_S
    if idle and may_go_idle and upkeep.now - max(worker.idle_since, machine.joined_at or 0.0) >= idle_s:
        return MachineEndReason.IDLE
    return None


def _draining(machine: Machine, upkeep: Upkeep) -> Machine:
    worker = upkeep.workers.get(machine.worker_id)
    out_of_time = machine.stop_by is not None and upkeep.now >= machine.stop_by
    if worker is not None and worker.busy and not out_of_time:
        return machine
    return moved(machine, MachineInput.DESTROY, upkeep.now)
