"""Indexes which open workers could take which class of jobs, and who waits.

It repeats nothing but what the store holds and can be rebuilt from it at any time. It exists so that placing a job
costs the same whatever the number of workers and jobs that are not concerned.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import chain

from simpletuner_fleet.core.jobs.job import Attempt, Job, Requirements, has_left_its_gpus
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
from simpletuner_fleet.core.placement.roster.alike import Alike
from simpletuner_fleet.core.placement.roster.gpu_holders import GpuHolders
from simpletuner_fleet.core.placement.roster.known_surveys import KnownSurveys
from simpletuner_fleet.core.placement.roster.lines import Lines, Waiting, waits
from simpletuner_fleet.core.placement.roster.reservations import Reservations
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.workers.audience import Audience
from simpletuner_fleet.core.workers.worker import Gpu, Worker, WorkerType, gpu_identity

CANDIDATES_COMPARED = 32


class Roster:
    def __init__(self) -> None:
        self.workers: dict[str, Worker] = {}
        self.kept: dict[str, Audience] = {}
        """By worker, for whom it is kept; one that is not here is everybody's."""
        self.running = 0
        self.running_by_owner: dict[str, int] = {}
        self.running_by_team: dict[str, int] = {}
        self.book: QuotaBook | None = None
        """None where there are no quotas."""
        self.lines = Lines(begun=self._match_alike, over=self._forget_alike)
        self.allowlists: Mapping[str, TeamAllowlist] = {}
        """By team, what its jobs may use; a team that is not here may use everything."""
        self.prices: PriceList = NO_PRICES
        """By which machines are too dear for jobs that say what they may cost."""
        self.freed: list[str] = []
        """Workers that a job kept others off and no longer does; whoever looks takes them out."""
        self._live: dict[str, int] = {}
        self._gpus = GpuHolders()
        self._occupancy: dict[str, Occupancy] = {}
        self._fits: dict[str, dict[Requirements, None]] = {}
        """By worker, whom it fits."""
        self._attempts: dict[str, Attempt] = {}
        """Those that are live, by job."""
        self._attempts_of: dict[str, int] = {}
        """How many of them each worker has, with those that hold no place any more."""
        self._finishing: dict[str, bool] = {}
        """Jobs whose trainer has ended well; True: they have left place and GPUs, as they do where their worker stays."""
        self.reservations = Reservations()
        self.surveys = KnownSurveys()
        self._unreachable: set[str] = set()
        self._holders: dict[str, dict[str, None]] = {}
        """By dataset, the workers that have it."""

    def seen_from_outside(self) -> "Roster":
        """Returns a copy with the workers, what they hold and how many run, but without the waiting jobs."""
        seen = Roster()
        seen.workers, seen.kept = dict(self.workers), dict(self.kept)
        seen.running = self.running
        seen.running_by_owner = dict(self.running_by_owner)
        seen.running_by_team = dict(self.running_by_team)
        seen.book, seen.allowlists, seen.prices = self.book, self.allowlists, self.prices
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
        live, listens = self._live.get(worker_id, 0), worker_id not in self._unreachable
        without_gpus = Occupancy(live, listens=listens) if live or not listens else FREE
        worker = self.workers.get(worker_id)
        if worker is None or not self._gpus:
            return without_gpus
        held = [uuid for uuid in (gpu.uuid for gpu in worker.gpus) if self._gpus.holders_of(worker_id, uuid)]
        if not held:
            return without_gpus
        elsewhere = [
            uuid for uuid in held if worker_id not in self._gpus.holders_of(worker_id, uuid).values()
        ]
        through = chain.from_iterable(self._gpus.holders_of(worker_id, uuid).values() for uuid in elsewhere)
        return Occupancy(live, frozenset(held), frozenset(elsewhere), frozenset(through), listens)

    def holders_of_gpu(self, worker_id: str, uuid: str) -> dict[str, str]:
        """Returns the live attempts that hold this GPU of this worker, each with the worker it runs on."""
        return dict(self._gpus.holders_of(worker_id, uuid))

    def offering(self, worker_id: str, gpus: Iterable[str]) -> list[str]:
        """Returns this worker and every other one that offers any of these GPUs of it."""
        return self._gpus.offering(worker_id, gpus)

    def neighbours(self, worker_id: str) -> list[str]:
        """Returns the other workers that offer one of this worker's GPUs."""
        worker = self.workers.get(worker_id)
        gpus = [gpu.uuid for gpu in worker.gpus] if worker else []
        return [other for other in self._gpus.offering(worker_id, gpus) if other != worker_id]

    def put_worker(self, worker: Worker) -> None:
        known = self.workers.get(worker.id)
        if worker.audience is not None:
            self.lines.tell_apart(worker.audience.people)
            self.kept[worker.id] = worker.audience
        else:
            self.kept.pop(worker.id, None)
        self.workers[worker.id] = worker
        self._occupancy.pop(worker.id, None)
        self.surveys.rows_changed()
        self._gpus.note_offered(worker.id, known.gpus if known else (), worker.gpus)
        if known is None or _shape(known) != _shape(worker):
            self._match_worker(worker)
            self.reservations.forget_worker(worker.id)
        self._note_datasets(worker.id, known.datasets if known else (), worker.datasets)
        if not in_service(worker):
            self.reservations.forget_worker(worker.id)
        self._place_worker(worker)

    def set_reachable(self, worker_id: str, reachable: bool) -> None:
        """Notes whether an offer would reach the worker: one whose stream is gone is still connected."""
        if reachable:
            self._unreachable.discard(worker_id)
        else:
            self._unreachable.add(worker_id)
        self._occupancy.pop(worker_id, None)
        self.surveys.work_changed()
        worker = self.workers.get(worker_id)
        if worker:
            self._place_worker(worker)

    def drop_worker(self, worker_id: str) -> None:
        gone = self.workers.pop(worker_id, None)
        self.kept.pop(worker_id, None)
        if gone is None:
            return
        self._note_datasets(worker_id, gone.datasets, ())
        self._occupancy.pop(worker_id, None)
        self.surveys.rows_changed()
        self._gpus.note_offered(worker_id, gone.gpus, ())
        for requires in self._fits.pop(worker_id, ()):
            alike = self.lines.alike[requires]
            alike.fitting.discard(worker_id)
            alike.open.pop(worker_id, None)
        self.reservations.forget_worker(worker_id)
        self._unreachable.discard(worker_id)

    def see_attempt(self, before: Attempt | None, after: Attempt | None, owner: str, team: str = "") -> None:
        """Updates the index for an attempt's beginning and end; `owner` and `team` are its job's."""
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
        """Tells whether the worker has anything to do: a training, or results to upload."""
        return worker_id in self._attempts_of

    @property
    def any_finishing(self) -> bool:
        return bool(self._finishing)

    def finishing_jobs(self) -> list[str]:
        return list(self._finishing)

    def _see_finishing(self, job_id: str, finishing: bool) -> None:
        """Frees the place of a trainer that has ended for the next job, even while results are being stored.

        A worker that leaves after its job takes no other, so its place is not freed.
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
            others = self._gpus.offering(attempt.worker_id, attempt.gpus)
            self.freed += [attempt.worker_id, *(other for other in others if other != attempt.worker_id)]

    def _leaves_after_its_job(self, worker_id: str) -> bool:
        worker = self.workers.get(worker_id)
        return worker is not None and worker.worker_type is WorkerType.EPHEMERAL

    def _occupy(self, attempt: Attempt, is_live: bool) -> None:
        _add(self._live, attempt.worker_id, 1 if is_live else -1)
        self.surveys.work_changed()
        for uuid in attempt.gpus:
            self._gpus.hold(gpu_identity(attempt.worker_id, uuid), attempt, is_live)
        for worker_id in self._gpus.offering(attempt.worker_id, attempt.gpus):
            self._occupancy.pop(worker_id, None)
            if worker_id in self.workers:
                self._place_worker(self.workers[worker_id])

    def see_job(self, before: Job | None, after: Job | None) -> None:
        """Updates the index as a job joins and leaves its queue, and when its training ends."""
        job = after or before
        if job is not None:
            self._see_finishing(job.id, after is not None and has_left_its_gpus(after))
        was_waiting, is_waiting = before is not None and waits(before), after is not None and waits(after)
        if (
            before is not None
            and was_waiting
            and (after is None or not is_waiting or (after.rank, after.line) != (before.rank, before.line))
        ):
            self.lines.leave(before)
            self.freed += self.reservations.forget_job(before.id)
            was_waiting = False
        if after is not None and is_waiting and not was_waiting:
            self.lines.join(after)

    def classes_for(self, worker_id: str) -> list[str]:
        """Returns the classes with jobs that this worker fits, by a look at all; `by_precedence` tells who is next."""
        fitting = chain.from_iterable(self.lines.alike[one].classes for one in self._fits.get(worker_id, ()))
        return [class_id for class_id in fitting if self.lines.classes[class_id].count]

    def by_precedence(self, worker_id: str) -> Generator[str]:
        """Yields the classes with jobs that this worker fits, by precedence (`Lines.by_precedence`)."""
        return self.lines.by_precedence(self._fits.get(worker_id, ()))

    def is_open(self, worker_id: str) -> bool:
        worker = self.workers.get(worker_id)
        return worker is not None and self._takes_offers(worker)

    def pick_worker(self, job: Job) -> tuple[Worker, tuple[Gpu, ...]] | None:
        """Returns the best open worker for this job and the GPUs it would give."""
        waiting = self.lines.classes[job.line]
        best: tuple[Preference, Worker, tuple[Gpu, ...]] | None = None
        compared = 0
        for worker_id in self._candidates(waiting):
            worker, held = self.workers[worker_id], self.occupancy(worker_id)
            if self._kept_from(worker_id, job):
                continue
            gpus = allocate(worker, held, waiting.requires, self.allowlists.get(waiting.requires.team))
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
        """Yields open workers, those with data of the job first: only so many are compared."""
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
        requires = self.lines.classes[job.line].requires
        gpus = allocate(worker, self.occupancy(worker_id), requires, self.allowlists.get(requires.team))
        return (worker, gpus) if gpus is not None else None

    def _kept_from(self, worker_id: str, job: Job) -> bool:
        return has_refused(self.workers[worker_id], job.refused_by) or self.reservations.keep_off(
            worker_id, job
        )

    def _takes_offers(self, worker: Worker) -> bool:
        return is_open(worker, self.occupancy(worker.id))

    def _match_worker(self, worker: Worker) -> None:
        fits = {requires: None for requires in self.lines.alike if self._could_take(worker, requires)}
        for requires in self._fits.get(worker.id, {}):
            if requires not in fits:
                self.lines.alike[requires].fitting.discard(worker.id)
                self.lines.alike[requires].open.pop(worker.id, None)
        for requires in fits:
            self.lines.alike[requires].fitting.add(worker.id)
        self._fits[worker.id] = fits

    def set_allowlists(self, allowlists: Mapping[str, TeamAllowlist]) -> None:
        """Sets what teams may use, and matches every worker anew if that has changed."""
        if allowlists == self.allowlists:
            return
        self.allowlists = allowlists
        self.surveys.rows_changed()
        self._match_all()

    def set_prices(self, prices: PriceList) -> None:
        """Sets what machines cost, and matches every worker anew if that has changed."""
        if prices == self.prices:
            return
        self.prices = prices
        self.surveys.rows_changed()
        self._match_all()

    def _match_all(self) -> None:
        for worker in self.workers.values():
            self._match_worker(worker)
            self._place_worker(worker)

    def _match_alike(self, alike: Alike) -> None:
        for worker in self.workers.values():
            if self._could_take(worker, alike.requires):
                alike.fitting.add(worker.id)
                self._fits[worker.id][alike.requires] = None
                if self._takes_offers(worker):
                    alike.open[worker.id] = None

    def _forget_alike(self, alike: Alike) -> None:
        for worker_id in alike.fitting:
            del self._fits[worker_id][alike.requires]

    def _could_take(self, worker: Worker, requires: Requirements) -> bool:
        return why_never(worker, requires, self.allowlists.get(requires.team), self.prices) is None

    def _place_worker(self, worker: Worker) -> None:
        open_now = self._takes_offers(worker)
        for requires in self._fits[worker.id]:
            alike = self.lines.alike[requires]
            if open_now:
                alike.open[worker.id] = None
            else:
                alike.open.pop(worker.id, None)


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
        worker.audience,
    )
