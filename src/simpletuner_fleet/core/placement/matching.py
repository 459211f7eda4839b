"""Decides which worker can take which job, with a sentence for the user for every refusal."""

from collections.abc import Collection, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Requirements, Target
from simpletuner_fleet.core.marks import N_
from simpletuner_fleet.core.money.ceilings import pays_for
from simpletuner_fleet.core.money.prices import NO_PRICES, PriceList, gpu_price, hourly_price
from simpletuner_fleet.core.placement.label_match import labels_match
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.workers.worker import AdminState, Connection, Gpu, Worker


class Refusal(StrEnum):
    """Gives the reason why a worker cannot take a job.

    They are in the order in which they are tried: what can never fit first, what does not fit now last.
    """

    NOT_REMOTE = N_("is the orchestrator's own machine, but the job asks for a remote worker")
    NOT_LOCAL = N_("is a remote worker, but the job asks for the orchestrator's own GPUs")
    KEPT_FOR_OTHERS = N_("is reserved for other people or teams")
    NODES_DIFFER = N_("does not have the number of nodes that the job asks for")
    TOO_FEW_GPUS = N_("has too few GPUs")
    TOO_LITTLE_VRAM = N_("has too few GPUs with enough memory")
    WRONG_ACCELERATOR = N_("has a different kind of accelerator")
    TRAINER_MISSING = N_("cannot run this trainer")
    LABELS_DIFFER = N_("does not have the required labels")
    NO_ROOM_FOR_DATA = N_("has no data cache large enough for the job's datasets")
    NOT_FOR_TEAM = N_("is not for the job's team")
    TOO_DEAR = N_("costs more an hour than the job allows")
    PRICE_UNKNOWN = N_("has no known price, and the job has a cost limit")
    COST_LIMIT = N_("costs more than is left of the job's cost limit")
    NOT_GRANTED = N_("does not grant a path that the job names")
    OFFLINE = N_("is not connected")
    RECONNECTING = N_("lost its connection and is expected back")
    DRAINING = N_("is draining")
    INTERRUPTED = N_("runs on a machine that is about to be taken away")
    SET_ASIDE = N_("failed to start its last jobs and is set aside for a while")
    UNUSABLE = N_("has GPUs that are unhealthy or in use by another program")
    HELD_ELSEWHERE = N_("has GPUs that another worker on the same machine is using")
    NOT_LISTENING = N_("takes no job for the moment")
    BUSY = N_("is busy")


EVERYBODY = "workers"
"""The funnel's first step, before anybody is ruled out."""
STEPS = tuple(Refusal)
NEVER = frozenset(STEPS[: STEPS.index(Refusal.OFFLINE)])
BY_WORK = (None, Refusal.HELD_ELSEWHERE, Refusal.NOT_LISTENING, Refusal.BUSY)
"""What a worker says by what it holds, and by whether it listens; None: it has room."""


class Occupancy(Struct, frozen=True):
    """Holds how many live attempts a worker has, which of its GPUs are held, and whether it takes offers."""

    live: int = 0
    gpus: frozenset[str] = frozenset()
    elsewhere: frozenset[str] = frozenset()
    """Those of them that are held through another worker of the same machine."""
    through: frozenset[str] = frozenset()
    """The ids of those other workers."""
    listens: bool = True
    """False: its stream is gone, it gave a job back, let an offer pass or is leaving. Its next heartbeat says otherwise."""


FREE = Occupancy()


def _gpu_fits(gpu: Gpu, requires: Requirements) -> bool:
    return (
        gpu.vram_gb >= requires.min_vram_gb
        and (not requires.accelerator or gpu.accelerator_type.lower() == requires.accelerator)
        and not (requires.avoids and _avoided(gpu, requires.avoids))
    )


def _avoided(gpu: Gpu, globs: tuple[str, ...]) -> bool:
    name = gpu.name.casefold()
    return any(fnmatchcase(name, glob.casefold()) for glob in globs)


def why_never(
    worker: Worker,
    requires: Requirements,
    allowlist: TeamAllowlist | None = None,
    prices: PriceList = NO_PRICES,
) -> Refusal | None:
    """Returns what no waiting will change. `allowlist` is what the job's team may use; None stands for everything."""
    if requires.target is (Target.WORKER if worker.local else Target.LOCAL):
        return Refusal.NOT_REMOTE if worker.local else Refusal.NOT_LOCAL
    if worker.audience is not None and not worker.audience.admits(requires.owner, requires.team):
        return Refusal.KEPT_FOR_OTHERS
    refusal = _why_never_by_gpus(worker, requires)
    if refusal:
        return refusal
    if requires.trainer not in worker.trainers:
        return Refusal.TRAINER_MISSING
    if not labels_match(requires.labels, worker.effective_labels):
        return Refusal.LABELS_DIFFER
    if requires.datasets and sum(size for _, size in requires.datasets) > worker.data_limit_bytes:
        return Refusal.NO_ROOM_FOR_DATA
    if allowlist is not None and not _is_allowed(worker, requires, allowlist):
        return Refusal.NOT_FOR_TEAM
    if is_too_dear(worker, requires, prices):
        return Refusal.TOO_DEAR
    return why_not_paid(worker, requires, allowlist, prices)


def _why_never_by_gpus(worker: Worker, requires: Requirements) -> Refusal | None:
    """Returns why the worker's nodes or GPUs never fit.

    A worker of several nodes takes no job for one: the many small jobs would keep it from the few that need it whole.
    """
    if requires.nodes > worker.nodes or (requires.nodes == 1 and worker.nodes > 1):
        return Refusal.NODES_DIFFER
    if chosen_gpus(worker.gpus, requires) is None:
        return Refusal.TOO_FEW_GPUS
    large = [gpu for gpu in worker.gpus if gpu.vram_gb >= requires.min_vram_gb]
    if chosen_gpus(large, requires) is None:
        return Refusal.TOO_LITTLE_VRAM
    fitting = [gpu for gpu in large if _gpu_fits(gpu, requires)]
    return Refusal.WRONG_ACCELERATOR if chosen_gpus(fitting, requires) is None else None


def chosen_gpus(gpus: Sequence[Gpu], requires: Requirements) -> tuple[Gpu, ...] | None:
    """Returns the GPUs that such a job gets: equally many of each node, always including the first node."""
    if requires.nodes == 1:
        return tuple(gpus[: requires.gpus]) if len(gpus) >= requires.gpus else None
    by_node: dict[int, list[Gpu]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu.node, []).append(gpu)
    per_node = requires.gpus_per_node
    large = [node for node in sorted(by_node) if len(by_node[node]) >= per_node][: requires.nodes]
    if len(large) < requires.nodes or large[0] != 0:
        return None
    return tuple(gpu for node in large for gpu in by_node[node][:per_node])


def is_too_dear(worker: Worker, requires: Requirements, prices: PriceList) -> bool:
    """Tells whether an hour of the whole machine costs too much; one without a price was paid for otherwise."""
    if requires.max_price_micros is None:
        return False
    price = hourly_price(prices, worker, worker.gpus)
    return price is not None and price > requires.max_price_micros


def why_not_paid(
    worker: Worker, requires: Requirements, allowlist: TeamAllowlist | None, prices: PriceList
) -> Refusal | None:
    """Returns why the job's ceiling does not pay for the most expensive GPUs that it could be given there.

    GPUs without a known price never count as free: nobody could tell when the ceiling is reached.
    """
    if requires.room_micros is None or not requires.gpus:
        return None
    known = [gpu_price(prices, worker, gpu) for gpu in fitting_gpus(worker, requires, allowlist)]
    costs = sorted(price for price in known if price is not None)
    if len(costs) < len(known):
        return Refusal.PRICE_UNKNOWN
    dearest = sum(costs[len(costs) - requires.gpus :])
    return None if pays_for(requires.room_micros, dearest) else Refusal.COST_LIMIT


def _is_allowed(worker: Worker, requires: Requirements, allowlist: TeamAllowlist) -> bool:
    """Tells whether the team may use the worker, with enough GPUs of the kinds that it may use."""
    return (
        allowlist.allows_worker(worker)
        and chosen_gpus(fitting_gpus(worker, requires, allowlist), requires) is not None
    )


def fitting_gpus(worker: Worker, requires: Requirements, allowlist: TeamAllowlist | None = None) -> list[Gpu]:
    """Returns the worker's GPUs that such a job could be given."""
    return [
        gpu
        for gpu in worker.gpus
        if _gpu_fits(gpu, requires) and (allowlist is None or allowlist.allows_gpu(gpu.name))
    ]


def refusal_of(worker: Worker) -> str:
    """Returns how a job notes that this worker denies what it names: after a restart it may grant more."""
    return f"{worker.id} {worker.incarnation}"


def has_refused(worker: Worker, refused_by: Collection[str]) -> bool:
    """Tells whether the worker has refused the job; whoever asks many workers asks with a set."""
    return bool(refused_by) and refusal_of(worker) in refused_by


_CONNECTED, _ACTIVE = Connection.CONNECTED, AdminState.ACTIVE
"""Compared at every change of a worker; see `core/jobs/job.py`."""


def in_service(worker: Worker) -> bool:
    """Tells whether the worker takes jobs once it has room."""
    return (
        worker.connection is _CONNECTED
        and worker.admin is _ACTIVE
        and not worker.takes_a_pause
        and worker.interruption is None
    )


def is_open(worker: Worker, occupancy: Occupancy) -> bool:
    """Tells whether the worker may be given any job at all now."""
    return occupancy.listens and occupancy.live < worker.max_jobs and in_service(worker)


def gpus_left_idle(worker: Worker, occupancy: Occupancy) -> int:
    """Counts the healthy GPUs that stay idle because the worker takes fewer jobs at a time than it has GPUs."""
    full = worker.max_jobs <= occupancy.live and worker.max_jobs < len(worker.gpus)
    if not full or not in_service(worker):
        return 0
    return sum(not gpu.unusable and gpu.uuid not in occupancy.gpus for gpu in worker.gpus)


def allocate(
    worker: Worker, occupancy: Occupancy, requires: Requirements, allowlist: TeamAllowlist | None = None
) -> tuple[Gpu, ...] | None:
    """Returns the GPUs a fitting, open worker would give, or None when too few are free."""
    return chosen_gpus(
        [gpu for gpu in _usable(worker, requires, allowlist) if gpu.uuid not in occupancy.gpus], requires
    )


def _usable(worker: Worker, requires: Requirements, allowlist: TeamAllowlist | None) -> list[Gpu]:
    fitting = [gpu for gpu in worker.gpus if not gpu.unusable and _gpu_fits(gpu, requires)]
    return fitting if allowlist is None else [gpu for gpu in fitting if allowlist.allows_gpu(gpu.name)]


def _why_not_in_service(worker: Worker) -> Refusal | None:
    if worker.connection is Connection.RECONNECTING:
        return Refusal.RECONNECTING
    if worker.connection is not Connection.CONNECTED:
        return Refusal.OFFLINE
    if worker.admin is AdminState.DRAINING:
        return Refusal.DRAINING
    if worker.interruption is not None:
        return Refusal.INTERRUPTED
    return Refusal.SET_ASIDE if worker.takes_a_pause else None


def why_not_now(
    worker: Worker,
    occupancy: Occupancy,
    requires: Requirements,
    refused_by: Collection[str] = (),
    allowlist: TeamAllowlist | None = None,
    prices: PriceList = NO_PRICES,
) -> Refusal | None:
    return why_never(worker, requires, allowlist, prices) or why_not_yet(
        worker, occupancy, requires, refused_by, allowlist
    )


def why_not_yet(
    worker: Worker,
    occupancy: Occupancy,
    requires: Requirements,
    refused_by: Collection[str] = (),
    allowlist: TeamAllowlist | None = None,
) -> Refusal | None:
    """Returns the same of a worker of which `why_never` has nothing to say."""
    if has_refused(worker, refused_by):
        return Refusal.NOT_GRANTED
    away = _why_not_in_service(worker)
    if away:
        return away
    if chosen_gpus(_usable(worker, requires, allowlist), requires) is None:
        return Refusal.UNUSABLE
    if occupancy.live >= worker.max_jobs:
        return Refusal.BUSY
    if allocate(worker, occupancy, requires, allowlist) is not None:
        return None if occupancy.listens else Refusal.NOT_LISTENING
    own = Occupancy(occupancy.live, occupancy.gpus - occupancy.elsewhere)
    return Refusal.BUSY if allocate(worker, own, requires, allowlist) is None else Refusal.HELD_ELSEWHERE


Preference = tuple[bool, int, int, float]


def preference(worker: Worker, occupancy: Occupancy, requires: Requirements) -> Preference:
    """Returns a sort key, the best worker first: remote ones, then least data to move, then the tightest fit.

    So big machines stay whole. It chooses among those that are free: no job waits for a worker with the data.
    """
    spare = len(worker.gpus) - len(occupancy.gpus) - requires.gpus
    smallest_vram = min((gpu.vram_gb for gpu in worker.gpus), default=0.0)
    to_move = bytes_to_move(worker, requires) if requires.datasets else 0
    return (worker.local, to_move, spare, smallest_vram)


def bytes_to_move(worker: Worker, requires: Requirements) -> int:
    return sum(size for dataset_id, size in requires.datasets if dataset_id not in worker.datasets)
