"""Restricts a team to the workers and GPUs that it may use."""

from fnmatch import fnmatchcase

from msgspec import Struct

from simpletuner_fleet.core.workers.worker import Worker


class TeamAllowlist(Struct, frozen=True):
    """Lists the workers and GPUs that a team may use."""

    workers: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]

    def allows_worker(self, worker: Worker) -> bool:
        if not self.workers:
            return True
        labels = {key.casefold(): value.casefold() for key, value in worker.effective_labels.items()}
        return any(key in labels and fnmatchcase(labels[key], pattern) for key, pattern in self.workers)

    def allows_gpu(self, name: str) -> bool:
        return not self.gpus or any(fnmatchcase(name.casefold(), pattern) for pattern in self.gpus)
