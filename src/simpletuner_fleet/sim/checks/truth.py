"""Records the ground truth where the product cannot see it: which trainers really run, and how they ended."""

from collections.abc import Iterable

from msgspec import Struct

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.sim.world import Violation


class Run(Struct):
    """Represents one trainer process tree."""

    job_id: str
    epoch: int
    where: str
    fenced: bool
    """Its worker stops it before the job is given away; older agents and `continue` jobs do not."""
    since: float | None
    ended: str | None = None
    gpus: frozenset[str] = frozenset()

    @property
    def running(self) -> bool:
        return self.since is not None


class Truth:
    def __init__(self) -> None:
        self.runs: dict[Turn, list[Run]] = {}
        self._active: dict[str, list[Run]] = {}
        self._by_gpu: dict[str, Run] = {}
        self._stored: set[str] = set()
        self._validations: dict[tuple[Turn, float], str] = {}
        """Requests that a trainer has heard, and the last agent that passed each on."""
        self.forgotten: set[Turn] = set()
        """What ran or was accepted before a restore: the database may have lost how it began."""

    def begins(
        self,
        job_id: str,
        epoch: int,
        where: str,
        *,
        fenced: bool,
        now: float,
        gpus: frozenset[str] = frozenset(),
    ) -> Run:
        earlier = self.runs.setdefault(Turn(job_id, epoch), [])
        if fenced and earlier:
            raise Violation("S4", f"a second trainer of {job_id} epoch {epoch} starts on {where}")
        run = Run(job_id, epoch, where, fenced, None, gpus=gpus)
        earlier.append(run)
        self.goes_on(run, now)
        return run

    def goes_on(self, run: Run, now: float) -> None:
        if run.running or run.ended:
            return
        active = self._active.setdefault(run.job_id, [])
        for other in active:
            if other.epoch != run.epoch and other.fenced and run.fenced:
                raise Violation(
                    "S3",
                    f"{run.job_id} runs twice: epoch {other.epoch} on {other.where} since {other.since:.3f} "
                    f"and epoch {run.epoch} on {run.where} from {now:.3f}",
                )
        active.append(run)
        run.since = now
        self._take_gpus(run)

    def _take_gpus(self, run: Run) -> None:
        for uuid in run.gpus:
            other = self._by_gpu.get(uuid)
            if other is not None and other.running and other is not run and other.fenced and run.fenced:
                raise Violation(
                    "S10",
                    f"{uuid} has two trainers: {other.job_id} epoch {other.epoch} and {run.job_id} epoch {run.epoch}",
                )
            self._by_gpu[uuid] = run

    def is_restored(self, accepted: Iterable[Turn]) -> None:
        """Notes runs and accepted attempts that the restored database has forgotten.

        Whoever was told of its acceptance may begin after the restore, too, as long as its lease lasts.
        """
        self.forgotten.update(self.runs, accepted)

    def asked_to_validate(self, incarnation: str, turn: Turn, asked_at: float) -> None:
        """An agent that was started anew may pass the same request on once more, no other."""
        if self._validations.get((turn, asked_at)) == incarnation:
            raise Violation("V1", f"{turn} was asked twice to validate for one request")
        self._validations[turn, asked_at] = incarnation

    def was_asked_to_validate(self, turn: Turn, asked_at: float) -> bool:
        return (turn, asked_at) in self._validations

    def stores(self, job_id: str) -> None:
        self._stored.add(job_id)

    def is_stored(self, job_id: str) -> bool:
        return job_id in self._stored

    def pauses(self, run: Run) -> None:
        if run.since is not None:
            run.since = None
            self._active[run.job_id].remove(run)

    def ends(self, run: Run, how: str) -> None:
        self.pauses(run)
        run.ended = run.ended or how

    def ended(self, job_id: str, epoch: int, how: str) -> bool:
        return any(run.ended == how for run in self.runs.get(Turn(job_id, epoch), ()))

    @property
    def anything_runs(self) -> bool:
        return any(self._active.values())
