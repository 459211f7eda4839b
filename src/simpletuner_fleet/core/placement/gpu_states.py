"""Says what one could do with each GPU of a fleet now, whichever and however many workers offer it."""

from collections.abc import Callable, Iterable
from enum import StrEnum

from simpletuner_fleet.core.placement.matching import Occupancy, is_open
from simpletuner_fleet.core.workers.worker import Gpu, Worker, gpu_identity


class GpuState(StrEnum):
    FREE = "free"
    BUSY = "busy"
    AWAY = "away"
    """Its worker takes no job now, or the GPU is unusable."""


_MOST_KNOWN_FIRST = (GpuState.BUSY, GpuState.FREE, GpuState.AWAY)


def gpu_states(
    workers: Iterable[Worker], occupancy_of: Callable[[str], Occupancy]
) -> list[tuple[Gpu, GpuState]]:
    """Returns every GPU once; one that two workers offer is busy if either says so, away only if both do."""
    states: dict[str, tuple[Gpu, GpuState]] = {}
    for worker in workers:
        held = occupancy_of(worker.id)
        unheld = GpuState.FREE if is_open(worker, held) else GpuState.AWAY
        for gpu in worker.gpus:
            state = GpuState.BUSY if gpu.uuid in held.gpus else GpuState.AWAY if gpu.unusable else unheld
            identity = gpu_identity(worker.id, gpu.uuid)
            known = states.get(identity)
            if known is None or _MOST_KNOWN_FIRST.index(state) < _MOST_KNOWN_FIRST.index(known[1]):
                states[identity] = (gpu, state)
    return list(states.values())
