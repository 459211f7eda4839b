"""An index over matching: which open workers could take which class of jobs, and who waits.

It repeats nothing but what the store holds and can be rebuilt from it at any time. It exists so that placing a job costs
the same whatever the number of workers and jobs that are not concerned.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from itertools import chain

from simpletuner_fleet.core.job import Attempt, Hold, Job, JobState, Requirements
from simpletuner_fleet.core.matching import (
    FREE,
    Occupancy,
    Preference,
    allocate,
    in_service,
    is_open,
    preference,
    why_never,
)
from simpletuner_fleet.core.ordering import Place, first, place_of
from simpletuner_fleet.core.worker import Gpu, Worker

MAX_IDLE_CLASSES = 1024
CANDIDATES_COMPARED = 32


class Waiting:
    """One class of jobs: how many wait, who is at its head, and which workers fit."""

    __slots__ = ("count", "fitting", "head", "open", "requires")

    def __init__(self, requires: Requirements) -> None:
        self.requires = requires
        self.count = 0
        self.head: Place | None = None
        self.fitting: set[str] = set()
        self.open: dict[str, None] = {}


class Roster:
    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.shape_version = 0
        """Changes whenever what could ever fit may have changed."""
        self.running = 0
        self.running_by_owner: dict[str, int] = {}
        self._occupancy: dict[str, Occupancy] = {}
        self._gpus_held: dict[str, Counter[str]] = {}
        self._classes: OrderedDict[str, Waiting] = OrderedDict()
        self._fits: dict[str, set[str]] = {}
        self._ranks: list[float] = []
        self._reserved: dict[str, tuple[str, Place]] = {}
        self._deaf: set[str] = set()
        self._holders: dict[str, dict[str, None]] = {}
        """By dataset, the workers that have it."""

    def occupancy(self, worker_id: str) -> Occupancy:
        return self._occupancy.get(worker_id, FREE)

    def put_worker(self, worker: Worker) -> None:
        known = self.workers.get(worker.id)
        self.workers[worker.id] = worker
        if known is None or _shape(known) != _shape(worker):
            self.shape_version += 1
            self._match_worker(worker)
            self._reserved.pop(worker.id, None)
        self._note_datasets(worker.id, known.datasets if known else (), worker.datasets)
        if not in_service(worker):
            self._reserved.pop(worker.id, None)
        self._place_worker(worker)

    def hears(self, worker_id: str) -> bool:
        return worker_id not in self._deaf

    def set_hearing(self, worker_id: str, hears: bool) -> None:
        """A worker whose stream is gone is connected still, but an offer would not reach it."""
        if hears:
            self._deaf.discard(worker_id)
        else:
            self._deaf.add(worker_id)
        worker = self.workers.get(worker_id)
        if worker:
            self._place_worker(worker)

    def drop_worker(self, worker_id: str) -> None:
        gone = self.workers.pop(worker_id, None)
        if gone is None:
            return
        self._note_datasets(worker_id, gone.datasets, ())
        self.shape_version += 1
        for class_id in self._fits.pop(worker_id, ()):
            waiting = self._classes[class_id]
            waiting.fitting.discard(worker_id)
            waiting.open.pop(worker_id, None)
        self._reserved.pop(worker_id, None)
        self._deaf.discard(worker_id)

    def see_attempt(self, attempt: Attempt, owner: str, was_live: bool) -> None:
        """Follows an attempt's beginning and end."""
        if attempt.live is was_live:
            return
        now_held = self.occupancy(attempt.worker_id)
        step = 1 if attempt.live else -1
        # Counted: an attempt thought lost may be heard of once more when its GPU has been given to another.
        held = self._gpus_held.setdefault(attempt.worker_id, Counter())
        held.update(dict.fromkeys(attempt.gpus, step))
        gpus = frozenset(uuid for uuid, times in held.items() if times > 0)
        if now_held.live + step:
            self._occupancy[attempt.worker_id] = Occupancy(now_held.live + step, gpus)
        else:
            self._occupancy.pop(attempt.worker_id, None)
            del self._gpus_held[attempt.worker_id]
        self.running += step
        left = self.running_by_owner.get(owner, 0) + step
        if left:
            self.running_by_owner[owner] = left
        else:
            self.running_by_owner.pop(owner, None)
        worker = self.workers.get(attempt.worker_id)
        if worker:
            self._place_worker(worker)

    def see_job(self, job: Job, before: Job | None) -> list[str]:
        """Follows a job into and out of its line; returns the workers that it kept others off until now."""
        freed: list[str] = []
        was_waiting = before is not None and waits(before)
        if before is not None and was_waiting and (not waits(job) or job.rank != before.rank):
            freed = self._leave_line(before)
            was_waiting = False
        if waits(job) and not was_waiting:
            self._join_line(job)
        return freed

    def load_line(self, class_id: str, requires: Requirements, ranks: Iterable[float]) -> None:
        """At the start: a whole class at once."""
        waiting = self.waiting(class_id, requires)
        ranks = list(ranks)
        waiting.count += len(ranks)
        waiting.head = None
        self._ranks.extend(ranks)
        self._ranks.sort()

    def position(self, rank: float) -> int:
        """How many waiting jobs stand at or before this rank."""
        return bisect_right(self._ranks, rank)

    def waiting(self, class_id: str, requires: Requirements) -> Waiting:
        waiting = self._classes.get(class_id)
        if waiting is None:
            waiting = self._classes[class_id] = Waiting(requires)
            self._match_class(class_id, waiting)
            self._forget_idle_classes()
        else:
            self._classes.move_to_end(class_id)
        return waiting

    def count(self, class_id: str) -> int:
        waiting = self._classes.get(class_id)
        return waiting.count if waiting else 0

    def classes_with_jobs(self) -> list[str]:
        return [class_id for class_id, waiting in self._classes.items() if waiting.count]

    def classes_for(self, worker_id: str) -> list[str]:
        """Classes with jobs that this worker fits."""
        return [class_id for class_id in self._fits.get(worker_id, ()) if self._classes[class_id].count]

    def head(self, class_id: str) -> Place | None:
        return self._classes[class_id].head

    def set_head(self, class_id: str, head: Place | None) -> None:
        self._classes[class_id].head = head

    def is_open(self, worker_id: str) -> bool:
        worker = self.workers.get(worker_id)
        return worker is not None and self._takes_offers(worker)

    def requires(self, class_id: str) -> Requirements:
        return self._classes[class_id].requires

    def fitting(self, class_id: str) -> set[str]:
        return self._classes[class_id].fitting

    def first_class(self, class_ids: Iterable[str]) -> str | None:
        heads = ((self._classes[class_id].head, class_id) for class_id in class_ids)
        return first((head, class_id) for head, class_id in heads if head is not None)

    def pick_worker(self, job: Job) -> tuple[Worker, tuple[Gpu, ...]] | None:
        """The best open worker for this job and the GPUs it would give."""
        waiting = self._classes[job.class_id]
        best: tuple[Preference, Worker, tuple[Gpu, ...]] | None = None
        compared = 0
        for worker_id in self._candidates(waiting):
            worker, held = self.workers[worker_id], self.occupancy(worker_id)
            if self._kept_from(worker_id, job):
                continue
            gpus = allocate(worker, held, waiting.requires)
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
        gpus = allocate(worker, self.occupancy(worker_id), self._classes[job.class_id].requires)
        return (worker, gpus) if gpus is not None else None

    def reserve(self, worker_id: str, job: Job) -> None:
        """Keeps those behind it off this worker until the job is placed; a job reserves one worker at a time.

        Whoever reserved a worker first keeps it for as long as the worker serves.
        """
        if worker_id not in self._reserved and all(job.id != id for id, _ in self._reserved.values()):
            self._reserved[worker_id] = (job.id, place_of(job))

    def reserved_for(self, worker_id: str) -> str | None:
        kept = self._reserved.get(worker_id)
        return kept[0] if kept else None

    def _kept_from(self, worker_id: str, job: Job) -> bool:
        """A job that stands before the one that reserved goes first: it may head the very line the other waits in."""
        kept = self._reserved.get(worker_id)
        return kept is not None and kept[0] != job.id and kept[1] < place_of(job)

    def _takes_offers(self, worker: Worker) -> bool:
        return worker.id not in self._deaf and is_open(worker, self.occupancy(worker.id))

    def _match_worker(self, worker: Worker) -> None:
        fits = {
            class_id
            for class_id, waiting in self._classes.items()
            if why_never(worker, waiting.requires) is None
        }
        for class_id in self._fits.get(worker.id, set()) - fits:
            self._classes[class_id].fitting.discard(worker.id)
            self._classes[class_id].open.pop(worker.id, None)
        for class_id in fits:
            self._classes[class_id].fitting.add(worker.id)
        self._fits[worker.id] = fits

    def _match_class(self, class_id: str, waiting: Waiting) -> None:
        for worker in self.workers.values():
            if why_never(worker, waiting.requires) is None:
                waiting.fitting.add(worker.id)
                self._fits[worker.id].add(class_id)
                if self._takes_offers(worker):
                    waiting.open[worker.id] = None

    def _place_worker(self, worker: Worker) -> None:
        open_now = self._takes_offers(worker)
        for class_id in self._fits[worker.id]:
            waiting = self._classes[class_id]
            if open_now:
                waiting.open[worker.id] = None
            else:
                waiting.open.pop(worker.id, None)

    def _join_line(self, job: Job) -> None:
        waiting = self.waiting(job.class_id, job.requires)
        place = place_of(job)
        if waiting.count == 0 or (waiting.head is not None and place < waiting.head):
            waiting.head = place
        waiting.count += 1
        insort(self._ranks, job.rank)

    def _leave_line(self, job: Job) -> list[str]:
        waiting = self._classes[job.class_id]
        waiting.count -= 1
        if waiting.head == place_of(job):
            waiting.head = None
        at = bisect_left(self._ranks, job.rank)
        if at < len(self._ranks) and self._ranks[at] == job.rank:
            del self._ranks[at]
        freed = [id for id, (job_id, _) in self._reserved.items() if job_id == job.id]
        for worker_id in freed:
            del self._reserved[worker_id]
        return freed

    def _forget_idle_classes(self) -> None:
        if len(self._classes) <= MAX_IDLE_CLASSES:
            return
        newest = next(reversed(self._classes))
        idle = [id for id, waiting in self._classes.items() if not waiting.count and id != newest]
        for class_id in idle[: max(1, MAX_IDLE_CLASSES // 4)]:
            for worker_id in self._classes.pop(class_id).fitting:
                self._fits[worker_id].discard(class_id)


def waits(job: Job) -> bool:
    """In its line and free to be placed."""
    return job.state is JobState.QUEUED and job.hold is Hold.NONE


def _shape(worker: Worker) -> tuple[object, ...]:
    return (
        *(worker.gpus, worker.trainers, worker.labels, worker.reported_labels, worker.local),
        worker.data_limit_bytes,
    )
