"""Datasets in the memory store."""

from collections.abc import Collection, Mapping, Sequence

from msgspec.structs import replace

from simpletuner_fleet.core.datasets import Dataset
from simpletuner_fleet.store.memory_tables import Tables


class DatasetsView:
    _tables: Tables

    def dataset(self, dataset_id: str) -> Dataset | None:
        return self._tables.datasets.get(dataset_id)

    def datasets(self) -> list[Dataset]:
        return sorted(self._tables.datasets.values(), key=lambda dataset: (-dataset.created_at, dataset.id))

    def dataset_file_size(self, dataset_ids: Sequence[str], sha256: str) -> int | None:
        for dataset_id in dataset_ids:
            size = self._tables.dataset_files.get(dataset_id, {}).get(sha256)
            if size is not None:
                return size
        return None

    def dataset_objects(self, shas: Collection[str]) -> dict[str, int]:
        known = self._tables.dataset_objects
        return {sha256: known[sha256][0] for sha256 in shas if sha256 in known}

    def dataset_bytes(self) -> int:
        return sum(size for size, _ in self._tables.dataset_objects.values())

    def unused_dataset_objects(self, before: float, limit: int) -> list[str]:
        unused = [
            (since, sha256)
            for sha256, (_, since) in self._tables.dataset_objects.items()
            if since is not None and since < before
        ]
        return [sha256 for _, sha256 in sorted(unused)[:limit]]

    def job_naming(self, dataset_id: str) -> str | None:
        jobs = (self._tables.jobs[job_id] for job_id in self._tables.dataset_jobs.get(dataset_id, ()))
        waiting = [(job.seq, job.id) for job in jobs if not job.terminal]
        return min(waiting)[1] if waiting else None


class DatasetsTx(DatasetsView):
    def add_dataset(self, dataset: Dataset, files: Mapping[str, int]) -> None:
        tables = self._tables
        known = tables.datasets.get(dataset.id)
        tables.set_dataset(dataset.id, replace(known, name=dataset.name) if known else dataset)
        tables.set_dataset_files(dataset.id, {**tables.dataset_files.get(dataset.id, {}), **files})
        for sha256 in files:
            if sha256 in tables.dataset_objects:
                tables.set_dataset_object(sha256, (tables.dataset_objects[sha256][0], None))

    def delete_dataset(self, dataset_id: str, at: float) -> None:
        tables = self._tables
        files = tables.dataset_files.get(dataset_id, {})
        others = [held for other, held in tables.dataset_files.items() if other != dataset_id]
        for sha256 in files:
            known = tables.dataset_objects.get(sha256)
            if known and known[1] is None and not any(sha256 in held for held in others):
                tables.set_dataset_object(sha256, (known[0], at))
        tables.set_dataset_files(dataset_id, None)
        tables.set_dataset(dataset_id, None)

    def own_dataset_object(self, sha256: str, size: int, at: float) -> None:
        known = self._tables.dataset_objects.get(sha256)
        if known is None:
            self._tables.set_dataset_object(sha256, (size, at))
        elif known[1] is not None:
            self._tables.set_dataset_object(sha256, (known[0], at))

    def disown_dataset_objects(self, shas: Collection[str]) -> None:
        for sha256 in shas:
            self._tables.set_dataset_object(sha256, None)

    def name_datasets(self, job_id: str, dataset_ids: Collection[str]) -> None:
        for dataset_id in dataset_ids:
            named = self._tables.dataset_jobs.get(dataset_id, frozenset())
            self._tables.set_dataset_jobs(dataset_id, named | {job_id})
