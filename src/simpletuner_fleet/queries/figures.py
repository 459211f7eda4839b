"""Computes what operators watch: GPUs by state, how long jobs wait and for what, and how much is stored."""

from collections import Counter

from msgspec import Struct

from simpletuner_fleet.core.cutting import excerpt
from simpletuner_fleet.core.placement.gpu_states import gpu_states
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.ports import View
from simpletuner_fleet.queries.explainer import Explainer

MOST_MODELS = 24
"""Workers say what their GPUs are called: whatever they say, there are no more names than these, and one for the rest."""
LONGEST_MODEL = 64
OTHER_MODELS = "other"
MOST_WAITING = 1000
"""So many, from the front of the queue, are asked for their reasons."""


class WaitFigure(Struct, frozen=True, kw_only=True):
    kind: str
    """What it takes: wait, change or admin."""
    jobs: int
    oldest_s: float


class FleetFigures(Struct, frozen=True, kw_only=True):
    workers: dict[str, int]
    """By status."""
    gpus: dict[tuple[str, str], int]
    """By model and state. A GPU is one, whoever offers it."""
    waiting: dict[str, WaitFigure]
    """By reason."""


class StoredFigures(Struct, frozen=True, kw_only=True):
    jobs_bytes: int
    """Checkpoints, artifacts and samples."""
    datasets_bytes: int


async def fleet_figures(fleet: Fleet) -> FleetFigures:
    now, standing = fleet.clock.now(), fleet.standing()

    def look(view: View) -> FleetFigures:
        explainer = Explainer(view, standing)
        waits: dict[tuple[str, str], list[float]] = {}
        for ahead, job in enumerate(view.queue_page(None, MOST_WAITING)):
            why = explainer.explain(job, ahead, now)
            waits.setdefault((str(why.code), str(why.kind)), []).append(max(0.0, now - job.created_at))
        roster = explainer.roster
        statuses = (worker.status(roster.has_attempts(worker.id)) for worker in list(roster.workers.values()))
        return FleetFigures(
            workers=dict(Counter(map(str, statuses))),
            gpus=gpus_by_state(roster),
            waiting={
                reason: WaitFigure(kind=kind, jobs=len(ages), oldest_s=max(ages))
                for (reason, kind), ages in waits.items()
            },
        )

    return await fleet.read(look)


async def stored_figures(fleet: Fleet) -> StoredFigures:
    return await fleet.scan(
        lambda view: StoredFigures(
            jobs_bytes=view.stored_bytes_of_jobs(), datasets_bytes=view.dataset_bytes()
        )
    )


def gpus_by_state(roster: Roster) -> dict[tuple[str, str], int]:
    states = gpu_states(list(roster.workers.values()), roster.occupancy)
    return _few_models(Counter((gpu.name, str(state)) for gpu, state in states))


def _few_models(counts: Counter[tuple[str, str]]) -> dict[tuple[str, str], int]:
    by_model: Counter[str] = Counter()
    for (model, _), count in counts.items():
        by_model[model] += count
    kept = {model for model, _ in by_model.most_common(MOST_MODELS)}
    few: Counter[tuple[str, str]] = Counter()
    for (model, state), count in counts.items():
        few[excerpt(model, LONGEST_MODEL) if model in kept else OTHER_MODELS, state] += count
    return dict(few)
