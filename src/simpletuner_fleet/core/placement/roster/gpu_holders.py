"""Tracks which workers offer each GPU and which attempts hold it: it is one GPU, whichever workers report it."""

from collections.abc import Iterable

from simpletuner_fleet.core.jobs.job import Attempt
from simpletuner_fleet.core.workers.worker import Gpu, Worker, gpu_identity


class GpuHolders:
    def __init__(self) -> None:
        self._holders: dict[str, dict[str, str]] = {}
        """By GPU, the attempts that hold it and through which worker."""
        self._offered_by: dict[str, dict[str, None]] = {}
        """By GPU, the workers that offer it."""
        self._identities: dict[str, tuple[str, ...]] = {}
        """By worker, those of the GPUs that it offers, in their order."""

    def holders_of(self, worker_id: str, uuid: str) -> dict[str, str]:
        """Returns the live attempts that hold this GPU of this worker, each with the worker it runs on."""
        return self._holders.get(gpu_identity(worker_id, uuid), {})

    def held_of(self, worker: Worker) -> list[tuple[str, dict[str, str]]]:
        """Returns the GPUs of this worker that live attempts hold, each with those attempts and their workers.

        Whoever looks from another thread may find a worker whose GPUs are just being noted, and looks again.
        """
        held = []
        for gpu, identity in zip(worker.gpus, self._identities.get(worker.id, ()), strict=False):
            if identity in self._holders:
                held.append((gpu.uuid, self._holders[identity]))
        return held

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
        identities = tuple(gpu_identity(worker_id, gpu.uuid) for gpu in now)
        for identity in identities:
            self._offered_by.setdefault(identity, {})[worker_id] = None
        if identities:
            self._identities[worker_id] = identities
        else:
            self._identities.pop(worker_id, None)

    def hold(self, attempt: Attempt, holds: bool) -> dict[str, None]:
        """Notes that the attempt holds its GPUs, or no longer does, and returns whom `offering` would return."""
        offering: dict[str, None] = {attempt.worker_id: None}
        for uuid in attempt.gpus:
            identity = gpu_identity(attempt.worker_id, uuid)
            holders = self._holders.setdefault(identity, {})
            if holds:
                holders[attempt.id] = attempt.worker_id
            else:
                holders.pop(attempt.id, None)
            if not holders:
                del self._holders[identity]
            if identity in self._offered_by:
                offering |= self._offered_by[identity]
        return offering
