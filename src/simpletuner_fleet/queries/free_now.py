"""Computes what is free now: the GPUs by model, and how large a job would start at once."""

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct

from simpletuner_fleet.core.jobs.job import Requirements
from simpletuner_fleet.core.people.visibility import VisibilityScope, knows_of
from simpletuner_fleet.core.placement.gpu_states import GpuState, gpu_states
from simpletuner_fleet.core.placement.matching import FREE, Occupancy, allocate, is_open
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.workers.worker import Worker
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.memory.standing import FleetStanding
from simpletuner_fleet.engine.visibility import scope_of
from simpletuner_fleet.ports import View
from simpletuner_fleet.queries.explainer import Explainer

MOST_GPUS_ASKED = 64


class GpuKind(Struct, frozen=True, kw_only=True):
    """Counts all GPUs of one name and size; one that two workers offer is one."""

    name: str
    vram_gb: float
    free: int
    busy: int
    away: int
    """Draining, offline, unusable, or held by nobody on a worker that takes no more jobs at a time."""


class FreeNow(Struct, frozen=True, kw_only=True):
    workers: int
    gpus: list[GpuKind]
    starts_now: int
    """The largest number of GPUs that one job would get at once; 0 for none."""
    room: bool
    """Some worker would take a job that needs no GPU."""


async def look(fleet: Fleet) -> FreeNow:
    standing = fleet.standing()

    def read(view: View) -> FreeNow:
        return free_now(Explainer(view, standing).roster, standing, scope_of(view))

    return await fleet.read(read)


def free_now(roster: Roster, standing: FleetStanding, scope: VisibilityScope) -> FreeNow:
    """Counts over all workers that are not kept for others, once as long as no worker changes."""
    figures = standing.figures if standing.roster is not None else {}
    kept = frozenset(id for id, audience in roster.kept.items() if not knows_of(scope, audience))
    key = " ".join(("free_now", *sorted(kept)))
    if key not in figures:
        workers = [worker for worker in machines_of(roster) if worker.id not in kept]
        occupancy = {worker.id: roster.occupancy(worker.id) for worker in workers}
        figures[key] = FreeNow(
            workers=len(workers),
            gpus=gpu_kinds(workers, occupancy),
            starts_now=largest_start(workers, occupancy),
            room=any(is_open(worker, occupancy[worker.id]) for worker in workers),
        )
    counted: FreeNow = figures[key]
    return counted


def machines_of(roster: Roster) -> list[Worker]:
    """Returns all workers, but for the orchestrator's own where it has no GPU."""
    return [worker for worker in roster.workers.values() if not worker.local or worker.gpus]


def gpu_kinds(workers: Sequence[Worker], occupancy: Mapping[str, Occupancy]) -> list[GpuKind]:
    """Counts the GPUs of each kind, those with the most memory first."""
    counts: dict[tuple[str, float], Counter[GpuState]] = {}
    for gpu, state in gpu_states(workers, lambda id: occupancy.get(id, FREE)):
        counts.setdefault((gpu.name, round(gpu.vram_gb, 1)), Counter())[state] += 1
    all_kinds = [
        GpuKind(
            name=name,
            vram_gb=vram,
            free=count[GpuState.FREE],
            busy=count[GpuState.BUSY],
            away=count[GpuState.AWAY],
        )
        for (name, vram), count in counts.items()
    ]
    return sorted(all_kinds, key=lambda kind: (-kind.vram_gb, kind.name))


def largest_start(workers: Sequence[Worker], occupancy: Mapping[str, Occupancy]) -> int:
    largest = 0
    for worker in workers:
        held = occupancy.get(worker.id, FREE)
        if not is_open(worker, held):
            continue
        while largest < MOST_GPUS_ASKED and allocate(worker, held, Requirements(gpus=largest + 1)):
            largest += 1
    return largest
