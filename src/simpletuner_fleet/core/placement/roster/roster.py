"""An index over matching: which open workers could take which class of jobs, and who waits.

It repeats nothing but what the store holds and can be rebuilt from it at any time. It exists so that placing a job costs
the same whatever the number of workers and jobs that are not concerned.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice
from math import inf

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, Hold, Job, JobState, Requirements, has_left_its_gpus
from simpletuner_fleet.core.money.prices import NO_PRICES, PriceList
from simpletuner_fleet.core.people.quotas import QuotaBook
from simpletuner_fleet.core.placement.matching import (
    FREE,
    Occupancy,
    Preference,
    allocate,
    has_refused,
    in_service,
    is_open,
    preference,
    why_never,
)
from simpletuner_fleet.core.placement.ordering import Place, place_of
from simpletuner_fleet.core.placement.pools import Pool
from simpletuner_fleet.core.placement.roster.alike import SLACK_IN_LINE, Alike, Standing
from simpletuner_fleet.core.placement.roster.ranks import Ranks
from simpletuner_fleet.core.placement.roster.reservations import Reservations
from simpletuner_fleet.core.placement.shares import NO_SHARE, Account, ShareKey, Shares
from simpletuner_fleet.core.workers.worker import Gpu, Worker, WorkerType, gpu_identity

MAX_IDLE_CLASSES = 1024
CANDIDATES_COMPARED = 32
LineEntry = tuple[float, int, str]
"""The place and the job: what a line is ordered by."""
Precedence = tuple[ShareKey, Place, str]
"""Of a class: what its team and owner have used where that counts, the place of its first job, and the class itself."""


class Waiting:
    """One class of jobs: who waits, in order; which workers fit, all who are alike know together.

    The line is a heap in which a job that has left stays until it comes to the front: leaving costs nothing.
    """

    __slots__ = ("alike", "count", "line", "requires")

    def __init__(self, requires: Requirements, alike: Alike) -> None:
        self.requires = requires
        self.alike = alike
        self.count = 0
        self.line: list[tuple[float, int, str]] = []

    @property
    def fitting(self) -> set[str]:
        return self.alike.fitting

    @property
    def open(self) -> dict[str, None]:
        return self.alike.open


class Roster:
    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.running = 0
        self.running_by_owner: dict[str, int] = {}
        self.running_by_team: dict[str, int] = {}
        self.book: QuotaBook | None = None
        """None where there are no quotas."""
        self.shares: Shares | None = None
        """None where nobody's share counts: first come, first served."""
        self.pools: Mapping[str, Pool] = {}
        """By team, what its jobs may use; a team that is not here may use everything."""
        self.prices: PriceList = NO_PRICES
        """By which machines are too dear for jobs that say what they may cost."""
        self.freed: list[str] = []
        """Workers that a job kept others off and no longer does; whoever looks takes them out."""
        self._live: dict[str, int] = {}
        self._gpu_holders: dict[str, dict[str, str]] = {}
        """By GPU, the attempts that hold it and through which worker: one GPU is one, whoever offers it."""
        self._gpu_workers: dict[str, dict[str, None]] = {}
        """By GPU, the workers that offer it."""
        self._occupancy: dict[str, Occupancy] = {}
        self._classes: dict[str, Waiting] = {}
        self._idle: dict[str, None] = {}
        """Classes in which nobody waits; the one that was asked for longest ago comes first."""
        self._alike: dict[Requirements, Alike] = {}
        """By what they require, whoever is their owner."""
        self._fits: dict[str, dict[Requirements, None]] = {}
        """By worker, whom it fits."""
        self._classes_of: dict[Account, dict[str, None]] = {}
        """By team and owner."""
        self._noted_by: tuple[Shares | None, int] = (None, 0)
        """By which shares, and in which round of theirs, the lines of all who are alike were noted."""
        self._entries: dict[str, LineEntry] = {}
        """Of each job that waits, the very entry by which it stands in its line; equal ones elsewhere are left over."""
        """Of every job that waits."""
        self._ranks = Ranks()
        self._attempts: dict[str, Attempt] = {}
        """Those that are live, by job."""
        self._attempts_of: dict[str, int] = {}
        """How many of them each worker has, with those that hold no place any more."""
        self._finishing: dict[str, bool] = {}
        """Jobs whose trainer has ended well; True: they have left place and GPUs, as they do where their worker stays."""
        self._newest_ranks: dict[int, float] = {}
        """By priority, since somebody began to wait."""
        self.reservations = Reservations()
        self._unreachable: set[str] = set()
        self._holders: dict[str, dict[str, None]] = {}
        """By dataset, the workers that have it."""

    def seen_from_outside(self) -> "Roster":
        """Returns a copy that tells who is there, what they hold and how many run; who waits is not in it."""
        seen = Roster()
        seen.workers = dict(self.workers)
        seen.running = self.running
        seen.running_by_owner = dict(self.running_by_owner)
        seen.running_by_team = dict(self.running_by_team)
        seen.book, seen.pools, seen.prices = self.book, self.pools, self.prices
        known = self._occupancy
        seen._occupancy = {id: known.get(id) or self._count_occupancy(id) for id in seen.workers}
        seen._attempts_of = dict(self._attempts_of)
        return seen

    def occupancy(self, worker_id: str) -> Occupancy:
        known = self._occupancy.get(worker_id)
        if known is None:
            known = self._occupancy[worker_id] = self._count_occupancy(worker_id)
        return known

    def _count_occupancy(self, worker_id: str) -> Occupancy:
        live = self._live.get(worker_id, 0)
        worker = self.workers.get(worker_id)
        if worker is None or not self._gpu_holders:
            return Occupancy(live) if live else FREE
        held = [uuid for uuid in (gpu.uuid for gpu in worker.gpus) if self._holders_of(worker_id, uuid)]
        if not held:
            return Occupancy(live) if live else FREE
        elsewhere = [uuid for uuid in held if worker_id not in self._holders_of(worker_id, uuid).values()]
        through = chain.from_iterable(self._holders_of(worker_id, uuid).values() for uuid in elsewhere)
        return Occupancy(live, frozenset(held), frozenset(elsewhere), frozenset(through))

    def _holders_of(self, worker_id: str, uuid: str) -> dict[str, str]:
        return self._gpu_holders.get(gpu_identity(worker_id, uuid), {})

    def holders_of_gpu(self, worker_id: str, uuid: str) -> dict[str, str]:
        """Returns the live attempts that hold this GPU of this worker, each with the worker it runs on."""
        return dict(self._holders_of(worker_id, uuid))

    def neighbours(self, worker_id: str) -> list[str]:
        """Returns the other workers that offer one of this worker's GPUs."""
        worker = self.workers.get(worker_id)
        gpus = [gpu.uuid for gpu in worker.gpus] if worker else []
        return [other for other in self.offering(worker_id, gpus) if other != worker_id]

    def put_worker(self, worker: Worker) -> None:
        known = self.workers.get(worker.id)
        self.workers[worker.id] = worker
        self._note_gpus(worker.id, known.gpus if known else (), worker.gpus)
        if known is None or _shape(known) != _shape(worker):
            self._match_worker(worker)
            self.reservations.forget_worker(worker.id)
        self._note_datasets(worker.id, known.datasets if known else (), worker.datasets)
        if not in_service(worker):
            self.reservations.forget_worker(worker.id)
        self._place_worker(worker)

    def set_reachable(self, worker_id: str, reachable: bool) -> None:
        """A worker whose stream is gone is connected still, but an offer would not reach it."""
        if reachable:
            self._unreachable.discard(worker_id)
        else:
            self._unreachable.add(worker_id)
        worker = self.workers.get(worker_id)
        if worker:
            self._place_worker(worker)

    def drop_worker(self, worker_id: str) -> None:
        gone = self.workers.pop(worker_id, None)
        if gone is None:
            return
        self._note_datasets(worker_id, gone.datasets, ())
        self._note_gpus(worker_id, gone.gpus, ())
        for requires in self._fits.pop(worker_id, ()):
            alike = self._alike[requires]
            alike.fitting.discard(worker_id)
            alike.open.pop(worker_id, None)
        self.reservations.forget_worker(worker_id)
        self._unreachable.discard(worker_id)

    def see_attempt(self, before: Attempt | None, after: Attempt | None, owner: str, team: str = "") -> None:
        """Follows an attempt's beginning and end; `owner` and `team` are its job's."""
        was_live, is_live = before is not None and before.live, after is not None and after.live
        if was_live is is_live:
            return
        attempt = after if is_live else before
        assert attempt is not None
        step = 1 if is_live else -1
        self.running += step
        _add(self.running_by_owner, owner, step)
        if team:
            _add(self.running_by_team, team, step)
        _add(self._attempts_of, attempt.worker_id, step)
        if is_live:
            self._attempts[attempt.job_id] = attempt
            if attempt.job_id in self._finishing and self._leaves_after_its_job(attempt.worker_id):
                self._finishing[attempt.job_id] = False
        else:
            self._attempts.pop(attempt.job_id, None)
        if not self._finishing.get(attempt.job_id):
            self._occupy(attempt, is_live)

    def has_attempts(self, worker_id: str) -> bool:
        """Tells whether it has anything to do: a training, or results to bring."""
        return worker_id in self._attempts_of

    @property
    def any_finishing(self) -> bool:
        return bool(self._finishing)

    def finishing_jobs(self) -> list[str]:
        return list(self._finishing)

    def _see_finishing(self, job_id: str, finishing: bool) -> None:
        """A trainer that has ended leaves its place to the next, whatever its results still wait for.

        Not so on a worker that leaves after its job: it takes no other one.
        """
        if finishing is (job_id in self._finishing):
            return
        attempt = self._attempts.get(job_id)
        if not finishing:
            has_left = self._finishing.pop(job_id)
            if attempt and has_left:
                self._occupy(attempt, True)
            return
        self._finishing[job_id] = not (attempt and self._leaves_after_its_job(attempt.worker_id))
        if attempt and self._finishing[job_id]:
            self._occupy(attempt, False)
            others = self.offering(attempt.worker_id, attempt.gpus)
            self.freed += [attempt.worker_id, *(other for other in others if other != attempt.worker_id)]

    def _leaves_after_its_job(self, worker_id: str) -> bool:
        worker = self.workers.get(worker_id)
        return worker is not None and worker.worker_type is WorkerType.EPHEMERAL

    def _occupy(self, attempt: Attempt, is_live: bool) -> None:
        _add(self._live, attempt.worker_id, 1 if is_live else -1)
        for uuid in attempt.gpus:
            self._hold_gpu(gpu_identity(attempt.worker_id, uuid), attempt, is_live)
        for worker_id in self.offering(attempt.worker_id, attempt.gpus):
            self._occupancy.pop(worker_id, None)
            if worker_id in self.workers:
                self._place_worker(self.workers[worker_id])

    def _hold_gpu(self, identity: str, attempt: Attempt, holds: bool) -> None:
        holders = self._gpu_holders.setdefault(identity, {})
        if holds:
            holders[attempt.id] = attempt.worker_id
        else:
            holders.pop(attempt.id, None)
        if not holders:
            del self._gpu_holders[identity]

    def offering(self, worker_id: str, gpus: Iterable[str]) -> list[str]:
        """Returns this worker and every other one that offers any of these GPUs of it."""
        offering: dict[str, None] = {worker_id: None}
        for uuid in gpus:
            offering.update(self._gpu_workers.get(gpu_identity(worker_id, uuid), {}))
        return list(offering)

    def _note_gpus(self, worker_id: str, before: tuple[Gpu, ...], now: tuple[Gpu, ...]) -> None:
        self._occupancy.pop(worker_id, None)
        if before is now:
            return
        for gpu in before:
            offering = self._gpu_workers.get(gpu_identity(worker_id, gpu.uuid), {})
            offering.pop(worker_id, None)
            if not offering:
                self._gpu_workers.pop(gpu_identity(worker_id, gpu.uuid), None)
        for gpu in now:
            self._gpu_workers.setdefault(gpu_identity(worker_id, gpu.uuid), {})[worker_id] = None

    def see_job(self, before: Job | None, after: Job | None) -> None:
        """Follows a job into and out of its line, and to the end of its training."""
        job = after or before
        if job is not None:
            self._see_finishing(job.id, after is not None and has_left_its_gpus(after))
        was_waiting, is_waiting = before is not None and waits(before), after is not None and waits(after)
        if (
            before is not None
            and was_waiting
            and (after is None or not is_waiting or (after.rank, after.line) != (before.rank, before.line))
        ):
            self._leave_line(before)
            was_waiting = False
        if after is not None and is_waiting and not was_waiting:
            self._join_line(after)

    def position(self, rank: float) -> int:
        """Returns how many waiting jobs stand at or before this rank."""
        return self._ranks.up_to(rank)

    def waiting(self, class_id: str, requires: Requirements) -> Waiting:
        waiting = self._classes.get(class_id)
        if waiting is None:
            alike = self._alike_of(requires)
            alike.classes.add(class_id)
            waiting = self._classes[class_id] = Waiting(requires, alike)
            self._classes_of.setdefault((requires.team, requires.owner), {})[class_id] = None
        if not waiting.count:
            self._idle.pop(class_id, None)
            self._idle[class_id] = None
            self._forget_idle_classes()
        return waiting

    def count(self, class_id: str) -> int:
        waiting = self._classes.get(class_id)
        return waiting.count if waiting else 0

    def classes_with_jobs(self) -> list[str]:
        return [class_id for class_id, waiting in self._classes.items() if waiting.count]

    def teams_waiting(self) -> set[str]:
        """Returns the teams of which jobs wait; '' stands for all who have none. Looks at every class."""
        return {waiting.requires.team for waiting in self._classes.values() if waiting.count}

    def classes_for(self, worker_id: str) -> list[str]:
        """Classes with jobs that this worker fits. Looks at every one of them; who is next, `by_precedence` tells."""
        fitting = chain.from_iterable(self._alike[one].classes for one in self._fits.get(worker_id, ()))
        return [class_id for class_id in fitting if self._classes[class_id].count]

    def by_precedence(self, worker_id: str) -> Generator[str]:
        """Yields the classes with jobs that this worker fits, in the order of their precedence.

        Nobody may join or leave a line, and no attempt begin or end, before it is closed.
        """
        self._note_who_moved()
        heads = [
            (self._before_others(first), alike)
            for alike in map(self._alike.__getitem__, self._fits.get(worker_id, ()))
            if (first := alike.first(self._standing))
        ]
        heapify(heads)
        taken: list[tuple[Alike, Standing]] = []
        try:
            while heads:
                precedence, alike = heads[0]
                yield precedence[2]
                taken.append((alike, alike.take()))
                following = alike.first(self._standing)
                if following:
                    heapreplace(heads, (self._before_others(following), alike))
                else:
                    heappop(heads)
        finally:
            for alike, standing in taken:
                alike.put_back(standing)

    def head(self, class_id: str) -> str | None:
        """Returns the job that stands first in its line."""
        waiting = self._classes.get(class_id)
        if waiting is None:
            return None
        line = waiting.line
        while line and self._entries.get(line[0][2]) is not line[0]:
            heappop(line)
        return line[0][2] if line else None

    def is_open(self, worker_id: str) -> bool:
        worker = self.workers.get(worker_id)
        return worker is not None and self._takes_offers(worker)

    def requires(self, class_id: str) -> Requirements:
        return self._classes[class_id].requires

    def fitting(self, class_id: str) -> set[str]:
        return self._classes[class_id].fitting

    def precedence(self, class_id: str) -> Precedence | None:
        """Returns where this class stands as against others: the smallest goes first."""
        job_id = self.head(class_id)
        if job_id is None:
            return None
        share = self.shares.key(self._classes[class_id].requires) if self.shares else NO_SHARE
        return share, self._entries[job_id][:2], class_id

    def _standing(self, class_id: str) -> Standing | None:
        """Returns where this class stands among those who are alike."""
        job_id = self.head(class_id)
        if job_id is None:
            return None
        requires = self._classes[class_id].requires
        used = self.shares.used_by(requires.team, requires.owner) if self.shares else 0.0
        return used, self._entries[job_id][:2], class_id

    def _before_others(self, standing: Standing) -> Precedence:
        used, place, class_id = standing
        team = self._classes[class_id].requires.team
        return ((self.shares.for_weight(team), used) if self.shares else NO_SHARE), place, class_id

    def _note_who_moved(self) -> None:
        """Notes whom an attempt that began or ended may have moved ahead; all anew where use is counted anew."""
        shares = self.shares
        counted_by = (shares, shares.round if shares else 0)
        if counted_by != self._noted_by:
            self._noted_by = counted_by
            for alike in self._alike.values():
                alike.forget()
            self._note(self.classes_with_jobs())
        elif shares:
            for account in shares.moved:
                self._note(self._classes_of.get(account, ()))
        if shares:
            shares.moved.clear()

    def _note(self, class_ids: Iterable[str]) -> None:
        for class_id in class_ids:
            if standing := self._standing(class_id):
                self._classes[class_id].alike.note(standing)

    def line_of(self, class_ids: Iterable[str]) -> list[Precedence]:
        """Returns those of these classes in which somebody waits, as a heap."""
        line = [one for class_id in class_ids if (one := self.precedence(class_id))]
        heapify(line)
        return line

    def pick_worker(self, job: Job) -> tuple[Worker, tuple[Gpu, ...]] | None:
        """The best open worker for this job and the GPUs it would give."""
        waiting = self._classes[job.line]
        best: tuple[Preference, Worker, tuple[Gpu, ...]] | None = None
        compared = 0
        for worker_id in self._candidates(waiting):
            worker, held = self.workers[worker_id], self.occupancy(worker_id)
            if self._kept_from(worker_id, job):
                continue
            gpus = allocate(worker, held, waiting.requires, self.pools.get(waiting.requires.team))
            if gpus is None:
                continue
            key = preference(worker, held, waiting.requires)
            if best is None or key < best[0]:
                best = (key, worker, gpus)
            compared += 1
            if compared >= CANDIDATES_COMPARED:
                break
        return (best[1], best[2]) if best else None

    def _candidates(self, waiting: Waiting) -> Iterator[str]:
        """Open workers, those with data of the job first: only so many are compared."""
        if not waiting.requires.datasets:
            return iter(waiting.open)
        holders = [self._holders.get(dataset_id, {}) for dataset_id, _ in waiting.requires.datasets]
        with_data = dict.fromkeys(id for id in chain(*holders) if id in waiting.open)
        return chain(with_data, (id for id in waiting.open if id not in with_data))

    def holders_of(self, dataset_id: str) -> list[str]:
        return list(self._holders.get(dataset_id, ()))

    def _note_datasets(self, worker_id: str, before: tuple[str, ...], now: tuple[str, ...]) -> None:
        if before == now:
            return
        for dataset_id in before:
            self._holders.get(dataset_id, {}).pop(worker_id, None)
            if not self._holders.get(dataset_id):
                self._holders.pop(dataset_id, None)
        for dataset_id in now:
            self._holders.setdefault(dataset_id, {})[worker_id] = None

    def try_worker(self, job: Job, worker_id: str) -> tuple[Worker, tuple[Gpu, ...]] | None:
        worker = self.workers[worker_id]
        if self._kept_from(worker_id, job):
            return None
        requires = self._classes[job.line].requires
        gpus = allocate(worker, self.occupancy(worker_id), requires, self.pools.get(requires.team))
        return (worker, gpus) if gpus is not None else None

    def _kept_from(self, worker_id: str, job: Job) -> bool:
        return has_refused(self.workers[worker_id], job.refused_by) or self.reservations.keep_off(
            worker_id, job
        )

    def _takes_offers(self, worker: Worker) -> bool:
        return worker.id not in self._unreachable and is_open(worker, self.occupancy(worker.id))

    def _match_worker(self, worker: Worker) -> None:
        fits = {requires: None for requires in self._alike if self._could_take(worker, requires)}
        for requires in self._fits.get(worker.id, {}):
            if requires not in fits:
                self._alike[requires].fitting.discard(worker.id)
                self._alike[requires].open.pop(worker.id, None)
        for requires in fits:
            self._alike[requires].fitting.add(worker.id)
        self._fits[worker.id] = fits

    def set_pools(self, pools: Mapping[str, Pool]) -> None:
        """What teams may use has changed: every worker is matched anew."""
        if pools == self.pools:
            return
        self.pools = pools
        self._match_all()

    def set_prices(self, prices: PriceList) -> None:
        """The same of what machines cost."""
        if prices == self.prices:
            return
        self.prices = prices
        self._match_all()

    def _match_all(self) -> None:
        for worker in self.workers.values():
            self._match_worker(worker)
            self._place_worker(worker)

    def _alike_of(self, requires: Requirements) -> Alike:
        shared = replace(requires, owner="")
        alike = self._alike.get(shared)
        if alike is None:
            alike = self._alike[shared] = Alike(shared)
            self._match_alike(alike)
        return alike

    def _match_alike(self, alike: Alike) -> None:
        for worker in self.workers.values():
            if self._could_take(worker, alike.requires):
                alike.fitting.add(worker.id)
                self._fits[worker.id][alike.requires] = None
                if self._takes_offers(worker):
                    alike.open[worker.id] = None

    def _could_take(self, worker: Worker, requires: Requirements) -> bool:
        return why_never(worker, requires, self.pools.get(requires.team), self.prices) is None

    def _place_worker(self, worker: Worker) -> None:
        open_now = self._takes_offers(worker)
        for requires in self._fits[worker.id]:
            alike = self._alike[requires]
            if open_now:
                alike.open[worker.id] = None
            else:
                alike.open.pop(worker.id, None)

    def _join_line(self, job: Job) -> None:
        waiting = self.waiting(job.line, job.requires)
        entry = self._entries[job.id] = (*place_of(job), job.id)
        heappush(waiting.line, entry)
        waiting.count += 1
        self._idle.pop(job.line, None)
        if waiting.count == 1 or waiting.line[0] is entry:  # behind others it moves nobody ahead
            self._note((job.line,))
        self._ranks.add(job.rank)
        self._newest_ranks[job.priority] = max(job.rank, self._newest_ranks.get(job.priority, job.rank))

    def newest_moment(self, priority_point_s: float) -> float:
        """Returns when the last of those who wait has come, as their ranks tell it."""
        moments = (rank + priority * priority_point_s for priority, rank in self._newest_ranks.items())
        return max(moments, default=-inf)

    def _leave_line(self, job: Job) -> None:
        waiting = self._classes[job.line]
        waiting.count -= 1
        if not waiting.count:
            self._idle[job.line] = None
        del self._entries[job.id]
        self._ranks.remove(job.rank)
        if not self._entries:
            self._newest_ranks.clear()
        if len(waiting.line) > 2 * waiting.count + SLACK_IN_LINE:
            self._tidy_line(waiting)
        self.freed += self.reservations.forget_job(job.id)

    def _tidy_line(self, waiting: Waiting) -> None:
        waiting.line = [one for one in waiting.line if self._entries.get(one[2]) is one]
        heapify(waiting.line)

    def _forget_idle_classes(self) -> None:
        """The newest stays: whoever asks for a class is about to use it."""
        if len(self._idle) <= MAX_IDLE_CLASSES:
            return
        for class_id in list(islice(self._idle, max(1, MAX_IDLE_CLASSES // 4))):
            del self._idle[class_id]
            self._forget_class(class_id)

    def _forget_class(self, class_id: str) -> None:
        gone = self._classes.pop(class_id)
        account = (gone.requires.team, gone.requires.owner)
        del self._classes_of[account][class_id]
        if not self._classes_of[account]:
            del self._classes_of[account]
        alike = gone.alike
        alike.classes.discard(class_id)
        alike.noted.pop(class_id, None)
        if not alike.classes:
            for worker_id in alike.fitting:
                del self._fits[worker_id][alike.requires]
            del self._alike[alike.requires]


_QUEUED, _NO_HOLD = JobState.QUEUED, Hold.NONE
"""Compared at every change of a job; see `core/jobs/job.py`."""


def waits(job: Job) -> bool:
    """In its line and free to be placed."""
    return job.state is _QUEUED and job.hold is _NO_HOLD


def _add(counts: dict[str, int], key: str, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        counts.pop(key, None)


def _shape(worker: Worker) -> tuple[object, ...]:
    return (
        *(worker.gpus, worker.trainers, worker.labels, worker.reported_labels, worker.local),
        *(worker.data_limit_bytes, worker.price_micros, worker.reported_price_micros, worker.worker_type),
    )
