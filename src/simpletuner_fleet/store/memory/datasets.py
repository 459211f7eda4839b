"""Keeps datasets in the memory store."""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from simpletuner_fleet.core.configs.datasets import Dataset
from simpletuner_fleet.core.people.visibility import Visibility
from simpletuner_fleet.ports import ConcurrentChange
from simpletuner_fleet.store.memory.tables import Tables


class MemoryDatasetsView:
    _tables: Tables

    def dataset(self, dataset_id: str) -> Dataset | None:
        dataset, ready = self._tables.datasets.get(dataset_id, (None, False))
        return dataset if ready else None

    def datasets(self) -> list[Dataset]:
        ready = [dataset for dataset, ready in self._tables.datasets.values() if ready]
        return sorted(ready, key=lambda dataset: (-dataset.created_at, dataset.id))

    def unready_datasets(self, before: float) -> list[str]:
        unready = [
            (dataset.created_at, dataset.id)
            for dataset, ready in self._tables.datasets.values()
            if not ready and dataset.created_at < before
        ]
        return [dataset_id for _, dataset_id in sorted(unready)]

    def dataset_file_size(self, dataset_ids: Sequence[str], sha256: str) -> int | None:
        for dataset_id in dataset_ids:
            size = self._tables.dataset_files.get(dataset_id, {}).get(sha256)
            if size is not None:
                return size
        return None

    def dataset_objects(self, shas: Collection[str], claimant: str | None = None) -> dict[str, int]:
        known = self._tables.dataset_objects
        stored = {sha256: known[sha256] for sha256 in shas if sha256 in known}
        named = self._named_for(claimant) if claimant is not None else frozenset()
        return {
            sha256: size
            for sha256, (size, _, owners) in stored.items()
            if claimant is None or claimant in owners or sha256 in named
        }

    def _named_for(self, claimant: str) -> frozenset[str]:
        tables = self._tables
        whole = (
            id
            for id, (dataset, ready) in tables.datasets.items()
            if ready and (dataset.visibility is Visibility.EVERYBODY or dataset.owner == claimant)
        )
        return frozenset(sha256 for id in whole for sha256 in tables.dataset_files.get(id, {}))

    def dataset_bytes(self) -> int:
        return sum(size for size, _, _ in self._tables.dataset_objects.values())

    def unused_dataset_objects(self, before: float, limit: int) -> list[str]:
        unused = [
            (since, sha256)
            for sha256, (_, since, _) in self._tables.dataset_objects.items()
            if since is not None and since < before
        ]
        return [sha256 for _, sha256 in sorted(unused)[:limit]]

    def job_naming(self, dataset_id: str) -> str | None:
        jobs = (self._tables.jobs[job_id] for job_id in self._tables.dataset_jobs.get(dataset_id, ()))
        waiting = [(job.seq, job.id) for job in jobs if not job.terminal]
        return min(waiting)[1] if waiting else None


class MemoryDatasetsTx(MemoryDatasetsView):
    def begin_dataset(self, dataset: Dataset) -> None:
        if dataset.id not in self._tables.datasets:
            self._tables.set_dataset(dataset.id, (dataset, False))

    def add_dataset_files(self, dataset_id: str, files: Mapping[str, int]) -> None:
        tables = self._tables
        if dataset_id not in tables.datasets:
            raise ConcurrentChange(f"there is no dataset {dataset_id}")
        tables.set_dataset_files(dataset_id, {**tables.dataset_files.get(dataset_id, {}), **files})
        for sha256 in files:
            if sha256 in tables.dataset_objects:
                size, _, owners = tables.dataset_objects[sha256]
                tables.set_dataset_object(sha256, (size, None, owners))

    def finish_dataset(self, dataset_id: str, name: str, files: int) -> bool:
        dataset, ready = self._tables.datasets.get(dataset_id, (None, False))
        if dataset is None or not (ready or len(self._tables.dataset_files.get(dataset_id, {})) == files):
            return False
        self._tables.set_dataset(dataset_id, (replace(dataset, name=name), True))
        return True

    def hide_dataset(self, dataset_id: str) -> None:
        known = self._tables.datasets.get(dataset_id)
        if known:
            self._tables.set_dataset(dataset_id, (known[0], False))

    def drop_dataset_files(self, dataset_id: str, at: float, limit: int) -> int:
        tables = self._tables
        files = tables.dataset_files.get(dataset_id, {})
        dropped = sorted(files)[:limit]
        tables.set_dataset_files(dataset_id, {sha: files[sha] for sha in files if sha not in dropped} or None)
        for sha256 in dropped:
            known = tables.dataset_objects.get(sha256)
            if (
                known
                and known[1] is None
                and not any(sha256 in held for held in tables.dataset_files.values())
            ):
                tables.set_dataset_object(sha256, (known[0], at, known[2]))
        if len(dropped) < limit and not tables.datasets.get(dataset_id, (None, True))[1]:
            tables.set_dataset(dataset_id, None)
        return len(dropped)

    def own_dataset_object(self, sha256: str, size: int, at: float, owner: str = "") -> None:
        known = self._tables.dataset_objects.get(sha256)
        if known is None:
            self._tables.set_dataset_object(sha256, (size, at, frozenset({owner})))
        else:
            unused_since = at if known[1] is not None else None
            self._tables.set_dataset_object(sha256, (known[0], unused_since, known[2] | {owner}))

    def disown_dataset_objects(self, shas: Collection[str]) -> None:
        for sha256 in shas:
            self._tables.set_dataset_object(sha256, None)

    def name_datasets(self, job_id: str, dataset_ids: Collection[str]) -> None:
        for dataset_id in dataset_ids:
            named = self._tables.dataset_jobs.get(dataset_id, frozenset())
            self._tables.set_dataset_jobs(dataset_id, named | {job_id})
