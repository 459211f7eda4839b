"""Indexes which open workers could take which class of jobs, and who waits.

It repeats nothing but what the store holds and can be rebuilt from it at any time. It exists so that placing a job
costs the same whatever the number of workers and jobs that are not concerned.
"""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from itertools import chain

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, Requirements, has_left_its_gpus
from simpletuner_fleet.core.money.prices import NO_PRICES, PriceList
from simpletuner_fleet.core.people.quotas import QuotaBook
from simpletuner_fleet.core.placement.matching import (
    FREE,
    Occupancy,
    allocate,
    has_refused,
    in_service,
    is_open,
    preference,
    why_never,
)
from simpletuner_fleet.core.placement.roster.alike import NO_ROOM, Alike, Room
from simpletuner_fleet.core.placement.roster.gpu_holders import GpuHolders
from simpletuner_fleet.core.placement.roster.known_surveys import KnownSurveys
from simpletuner_fleet.core.placement.roster.lines import Lines, Waiting, waits
from simpletuner_fleet.core.placement.roster.reservations import Reservations
from simpletuner_fleet.core.placement.roster.start_limits import StartLimits
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.placement.unreadable import ALL_READABLE, UnreadableSettings
from simpletuner_fleet.core.policy import NO_LIMITS, Limits
from simpletuner_fleet.core.workers.audience import Audience
from simpletuner_fleet.core.workers.worker import Gpu, Worker, WorkerType

CANDIDATES_COMPARED = 32
_ENDED = AttemptState.ENDED
"""Compared at every change of an attempt, without a call (`Attempt.live`); see `core/jobs/job.py`."""


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
        self.unreadable: UnreadableSettings = ALL_READABLE
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
        self._fits: dict[str, dict[Requirements, Alike]] = {}
        """By worker, whom it fits."""
        self._open: set[str] = set()
        """Workers that take offers: `_place_worker` says so anew at each change of a worker or of what it holds."""
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
        """Returns a copy with the workers, what they hold and how many run, but without the waiting jobs.

        The shares are not copied: what is used changes with every moment.
        """
        seen = Roster()
        seen.lines.share_with(self.lines)
        seen.workers, seen.kept = dict(self.workers), dict(self.kept)
        seen.running = self.running
        seen.running_by_owner = dict(self.running_by_owner)
        seen.running_by_team = dict(self.running_by_team)
        seen.book, seen.allowlists, seen.prices = self.book, self.allowlists, self.prices
        seen.unreadable = self.unreadable
        known = self._occupancy
        seen._occupancy = {
            id: known.get(id) or self._count_occupancy(id, one) for id, one in seen.workers.items()
        }
        seen._attempts_of = dict(self._attempts_of)
        seen._open = set(self._open)
        return seen

    def occupancy(self, worker_id: str) -> Occupancy:
        known = self._occupancy.get(worker_id)
        if known is None:
            worker = self.workers.get(worker_id)
            known = self._occupancy[worker_id] = self._count_occupancy(worker_id, worker)
        return known

    def _count_occupancy(self, worker_id: str, worker: Worker | None) -> Occupancy:
        live, listens = self._live.get(worker_id, 0), worker_id not in self._unreachable
        held = self._gpus.held_of(worker) if worker else None
        if not held:
            return Occupancy(live, listens=listens) if live or not listens else FREE
        elsewhere: list[str] = []
        through: list[str] = []
        for uuid, holders in held:
            if worker_id not in holders.values():
                elsewhere.append(uuid)
                through += holders.values()
        gpus = frozenset([uuid for uuid, _ in held])
        return Occupancy(live, gpus, frozenset(elsewhere), frozenset(through), listens)

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
        """Notes whether an offer would reach the worker: one whose stream is gone is still connected.

        Of a worker that is not here nothing is noted: whoever puts it says so then.
        """
        worker = self.workers.get(worker_id)
        if worker is None:
            return
        if reachable:
            self._unreachable.discard(worker_id)
        else:
            self._unreachable.add(worker_id)
        self.surveys.work_changed()
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
        self._open.discard(worker_id)
        for alike in self._fits.pop(worker_id, {}).values():
            alike.fitting.discard(worker_id)
            alike.open.pop(worker_id, None)
        self.reservations.forget_worker(worker_id)
        self._unreachable.discard(worker_id)

    def see_attempt(self, before: Attempt | None, after: Attempt | None, owner: str, team: str = "") -> None:
        """Updates the index for an attempt's beginning and end; `owner` and `team` are its job's."""
        was_live = before is not None and before.state is not _ENDED
        is_live = after is not None and after.state is not _ENDED
        if was_live is is_live:
            return
        attempt = after if is_live else before
        assert attempt is not None
        step = 1 if is_live else -1
        self.running += step
        _add(self.running_by_owner, owner, step)
        if team:
            _add(self.running_by_team, team, step)
        if not is_live:
            self.lines.freed_owners.add(owner)
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
        for worker_id in self._gpus.hold(attempt, is_live):
            if worker_id in self.workers:
                self._place_worker(self.workers[worker_id])
            else:
                self._occupancy.pop(worker_id, None)

    def see_job(self, before: Job | None, after: Job | None) -> None:
        """Updates the index as a job joins and leaves its queue, and when its training ends."""
        job = after or before
        if job is None:
            return
        finishing = after is not None and has_left_its_gpus(after)
        if finishing is not (job.id in self._finishing):
            self._see_finishing(job.id, finishing)
        is_waiting = after is not None and waits(after)
        was_waiting = before is not None and job.id in self.lines.entries
        if (
            before is not None
            and was_waiting
            and (after is None or not is_waiting or (after.rank, after.line) != (before.rank, before.line))
        ):
            self.lines.leave(before)
            if self.reservations.by_worker:
                self.freed += self.reservations.forget_job(before.id)
            was_waiting = False
        if after is not None and is_waiting and not was_waiting:
            self.lines.join(after)

    def classes_for(self, worker_id: str) -> list[str]:
        """Returns the classes with jobs that this worker fits, by a look at all; `by_precedence` tells who is next."""
        fitting = chain.from_iterable(one.classes for one in self._fits.get(worker_id, {}).values())
        return [class_id for class_id in fitting if self.lines.classes[class_id].count]

    def by_precedence(self, worker_id: str, kept: StartLimits | None = None) -> Generator[str]:
        """Yields the classes with jobs that this worker fits, by precedence (`Lines.by_precedence`)."""
        return self.lines.by_precedence(self._fits.get(worker_id, {}).values(), kept)

    def with_room(self) -> list[Alike]:
        """Returns those who wait and for whom some worker has room now."""
        rooms = self._room_for
        return [
            alike
            for alike in self.lines.alike.values()
            if alike.line and any(rooms(alike, worker_id) is not NO_ROOM for worker_id in alike.open)
        ]

    def start_limits(self, limits: Limits) -> StartLimits | None:
        """Returns what may keep jobs from starting; None where nothing does."""
        if limits == NO_LIMITS and self.book is None and self.unreadable is ALL_READABLE:
            return None
        return StartLimits(
            limits=limits,
            book=self.book,
            unreadable=self.unreadable,
            running=self.running,
            by_owner=self.running_by_owner,
            by_team=self.running_by_team,
        )

    def is_open(self, worker_id: str) -> bool:
        return worker_id in self._open

    def pick_worker(self, job: Job) -> tuple[Worker, tuple[Gpu, ...]] | None:
        """Returns the best open worker for this job and the GPUs it would give."""
        waiting = self.lines.classes[job.line]
        rooms, asks_each = waiting.alike.open, bool(job.refused_by or self.reservations.by_worker)
        compared, refused_by = 0, frozenset(job.refused_by)
        chosen, best = "", NO_ROOM
        for worker_id in self._candidates(waiting) if waiting.requires.datasets else rooms:
            if asks_each and self._keeps_off(worker_id, job, refused_by):
                continue
            room = rooms[worker_id] or self._room(waiting, worker_id)
            if room is NO_ROOM:
                continue
            if best is NO_ROOM or room.preference < best.preference:
                chosen, best = worker_id, room
            compared += 1
            if compared >= CANDIDATES_COMPARED:
                break
        return None if best is NO_ROOM else (self.workers[chosen], best.gpus)

    def _keeps_off(self, worker_id: str, job: Job, refused_by: Collection[str]) -> bool:
        """Tells whether the worker has refused this very job, or is reserved for one before it."""
        return has_refused(self.workers[worker_id], refused_by) or self.reservations.keep_off(worker_id, job)

    def has_room(self, waiting: Waiting, worker_id: str) -> bool:
        """Tells whether this open worker that fits has enough GPUs free for a job of this class."""
        return self._room(waiting, worker_id) is not NO_ROOM

    def _room(self, waiting: Waiting, worker_id: str) -> Room:
        """Returns what this open worker would give to a job of this class, and keeps it for those that are alike.

        They differ by their owners at most, who make no difference to it. `_place_worker` drops it.
        """
        return self._room_for(waiting.alike, worker_id)

    def _room_for(self, alike: Alike, worker_id: str) -> Room:
        room = alike.open[worker_id]
        if room is None:
            worker, held, requires = self.workers[worker_id], self._occupancy[worker_id], alike.requires
            gpus = allocate(worker, held, requires, self.allowlists.get(requires.team))
            room = NO_ROOM if gpus is None else Room(gpus, preference(worker, held, requires))
            alike.open[worker_id] = room
        return room

    def _candidates(self, waiting: Waiting) -> Iterator[str]:
        """Yields open workers, those with data of the job first: only so many are compared."""
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
        """Returns this open worker with the GPUs it would give to the job; None where it would not."""
        asks = job.refused_by or self.reservations.by_worker
        if asks and self._keeps_off(worker_id, job, job.refused_by):
            return None
        waiting = self.lines.classes[job.line]
        room = self._room(waiting, worker_id)
        return None if room is NO_ROOM else (self.workers[worker_id], room.gpus)

    def lacks_only_time(self, job: Job, worker_id: str) -> bool:
        """Tells whether the worker could take the job once the others there have ended, as it is now."""
        worker, requires = self.workers[worker_id], self.lines.classes[job.line].requires
        if has_refused(worker, job.refused_by):
            return False
        return allocate(worker, FREE, requires, self.allowlists.get(requires.team)) is not None

    def _match_worker(self, worker: Worker) -> None:
        fits = {one: alike for one, alike in self.lines.alike.items() if self._could_take(worker, one)}
        for requires, alike in self._fits.get(worker.id, {}).items():
            if requires not in fits:
                alike.fitting.discard(worker.id)
                alike.open.pop(worker.id, None)
        for alike in fits.values():
            alike.fitting.add(worker.id)
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
                self._fits[worker.id][alike.requires] = alike
                if worker.id in self._open:
                    alike.open[worker.id] = None

    def _forget_alike(self, alike: Alike) -> None:
        for worker_id in alike.fitting:
            del self._fits[worker_id][alike.requires]

    def _could_take(self, worker: Worker, requires: Requirements) -> bool:
        return why_never(worker, requires, self.allowlists.get(requires.team), self.prices) is None

    def _place_worker(self, worker: Worker) -> None:
        """Counts what the worker holds, and opens or closes it to those whom it fits.

        It follows each change of the worker and of what it holds. What it would give them is worked out when somebody
        asks.
        """
        worker_id, fits = worker.id, self._fits[worker.id]
        held = self._occupancy[worker_id] = self._count_occupancy(worker_id, worker)
        if is_open(worker, held):
            self._open.add(worker_id)
            for alike in fits.values():
                alike.open[worker_id] = None
        elif worker_id in self._open:
            self._open.remove(worker_id)
            for alike in fits.values():
                alike.open.pop(worker_id, None)


def _add(counts: dict[str, int], key: str, change: int) -> None:
    count = counts.get(key, 0) + change
    if count:
        counts[key] = count
    else:
        del counts[key]


def _shape(worker: Worker) -> tuple[object, ...]:
    return (
        *(worker.gpus, worker.trainers, worker.labels, worker.reported_labels, worker.local),
        *(worker.data_limit_bytes, worker.price_micros, worker.reported_price_micros, worker.worker_type),
        worker.audience,
    )
