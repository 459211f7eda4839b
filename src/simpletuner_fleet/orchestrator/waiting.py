"""The reason a job waits, from the index while writing and from a snapshot of the fleet while reading."""

from collections.abc import Callable

from msgspec import Struct

from simpletuner_fleet.core.explain import Explanation, Survey, explain, survey
from simpletuner_fleet.core.job import Job, Target
from simpletuner_fleet.core.matching import FREE, Occupancy
from simpletuner_fleet.core.ordering import limit_reached
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.core.reasons import Code
from simpletuner_fleet.core.worker import AdminState, Connection, Worker
from simpletuner_fleet.orchestrator.desk import Desk
from simpletuner_fleet.orchestrator.index import read_limits
from simpletuner_fleet.ports import View

WORKERS_ASKED = 64


def quick_explanation(desk: Desk, job: Job) -> Explanation:
    """Bounded by what concerns the job: while a fitting worker is at work, the rest of the fleet is not asked."""
    roster = desk.index.roster
    limit = limit_reached(desk.index.limits, roster.running, roster.running_by_owner.get(job.owner, 0))
    waiting = roster.waiting(job.class_id, job.requires)
    code = Code.LOCAL_GPU_BUSY if job.requires.target is Target.LOCAL else Code.ALL_MATCHING_BUSY
    told = _if_merely_busy(code, waiting.fitting, roster.workers.get, roster.occupancy)
    if told is None:
        told = survey(job.requires, ((worker, roster.occupancy(id)) for id, worker in roster.workers.items()))
    return explain(job, told, limit=limit, ahead=max(0, roster.position(job.rank) - 1), now=desk.now)


def _if_merely_busy(
    code: Code,
    fitting: set[str],
    worker_of: Callable[[str], Worker | None],
    held_by: Callable[[str], Occupancy],
) -> Survey | None:
    for _, worker_id in zip(range(WORKERS_ASKED), fitting, strict=False):
        worker = worker_of(worker_id)
        at_work = (
            worker is not None
            and worker.connection is Connection.CONNECTED
            and worker.admin is AdminState.ACTIVE
            and held_by(worker_id).live > 0
        )
        if at_work:
            return Survey(
                code=code,
                params={"workers": len(fitting)},
                funnel=(),
                workers=(),
                fixes=(),
                possible=len(fitting),
            )
    return None


class Snapshot(Struct, frozen=True):
    """The whole fleet at one moment, for explaining a page of jobs at once."""

    workers: dict[str, Worker]
    occupancy: dict[str, Occupancy]
    limits: Limits
    running: int
    running_by_owner: dict[str, int]


def take_snapshot(view: View) -> Snapshot:
    occupancy: dict[str, Occupancy] = {}
    by_owner: dict[str, int] = {}
    live = view.live_attempts()
    for attempt in live:
        held = occupancy.get(attempt.worker_id, FREE)
        occupancy[attempt.worker_id] = Occupancy(held.live + 1, held.gpus | set(attempt.gpus))
        job = view.job(attempt.job_id)
        if job:
            by_owner[job.owner] = by_owner.get(job.owner, 0) + 1
    return Snapshot(
        {worker.id: worker for worker in view.workers()}, occupancy, read_limits(view), len(live), by_owner
    )


class Explainer:
    """Explains many jobs against one snapshot; each class of jobs is surveyed once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._surveys: dict[str, Survey] = {}

    def explain(self, job: Job, ahead: int, now: float) -> Explanation:
        fleet = self._snapshot
        told = self._surveys.get(job.class_id)
        if told is None:
            told = survey(
                job.requires,
                ((worker, fleet.occupancy.get(id, FREE)) for id, worker in fleet.workers.items()),
            )
            self._surveys[job.class_id] = told
        limit = limit_reached(fleet.limits, fleet.running, fleet.running_by_owner.get(job.owner, 0))
        return explain(job, told, limit=limit, ahead=ahead, now=now)
