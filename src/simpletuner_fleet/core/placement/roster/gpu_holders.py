"""Tracks which workers offer each GPU and which attempts hold it: it is one GPU, whichever workers report it."""

from collections.abc import Iterable

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.workers.worker import Gpu, gpu_identity


class GpuHolders:
    def __init__(self) -> None:
        self._holders: dict[str, dict[str, str]] = {}
        """By GPU, the attempts that hold it and through which worker."""
        self._offered_by: dict[str, dict[str, None]] = {}
        """By GPU, the workers that offer it."""

    def __bool__(self) -> bool:
        return bool(self._holders)

    def holders_of(self, worker_id: str, uuid: str) -> dict[str, str]:
        """Returns the live attempts that hold this GPU of this worker, each with the worker it runs on."""
        return self._holders.get(gpu_identity(worker_id, uuid), {})

    def offering(self, worker_id: str, gpus: Iterable[str]) -> list[str]:
        """Returns this worker and every other one that offers any of these GPUs of it."""
        offering: dict[str, None] = {worker_id: None}
        for uuid in gpus:
            offering.update(self._offered_by.get(gpu_identity(worker_id, uuid), {}))
        return list(offering)

    def note_offered(self, worker_id: str, before: tuple[Gpu, ...], now: tuple[Gpu, ...]) -> None:
        if before is now:
            return
        for gpu in before:
            offering = self._offered_by.get(gpu_identity(worker_id, gpu.uuid), {})
            offering.pop(worker_id, None)
            if not offering:
                self._offered_by.pop(gpu_identity(worker_id, gpu.uuid), None)
        for gpu in now:
            self._offered_by.setdefault(gpu_identity(worker_id, gpu.uuid), {})[worker_id] = None

    def hold(self, identity: str, attempt: Attempt, holds: bool) -> None:
        holders = self._holders.setdefault(identity, {})
        if holds:
            holders[attempt.id] = attempt.worker_id
        else:
            holders.pop(attempt.id, None)
        if not holders:
            del self._holders[identity]
