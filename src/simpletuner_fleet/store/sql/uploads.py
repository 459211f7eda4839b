"""Stores manifests, who has uploaded what, and notes, in any SQL database."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from simpletuner_fleet.core.training.checkpoint import StoredManifest
from simpletuner_fleet.ports import ConcurrentChange, Ending, JobNote
from simpletuner_fleet.store.rows.uploads import manifest_of, manifest_params, note_of, note_params
from simpletuner_fleet.store.sql import statements as sql
from simpletuner_fleet.store.sql.database import Database
from simpletuner_fleet.store.sql.tallies import (
    STORED,
    STORED_BY_JOB,
    STORED_BY_OWNER,
    STORED_BY_TEAM,
    TallyView,
    count_content,
    count_stored,
    count_stored_file,
    recount_stored,
)

NAMED_AT_ONCE = 500
LOOKED_UP_SINGLY = 20
"""Of more files than this all that the job has are read: it costs less than to ask for each."""


class UploadsView(TallyView):
    _db: Database

    def manifest(self, manifest_id: str) -> StoredManifest | None:
        row = self._db.row(sql.MANIFEST, {"id": manifest_id})
        return None if row is None else manifest_of(row)

    def manifests_of_job(self, job_id: str) -> list[StoredManifest]:
        return [manifest_of(row) for row in self._db.rows(sql.MANIFESTS_OF_JOB, {"job_id": job_id})]

    def newest_checkpoint(self, job_id: str) -> StoredManifest | None:
        row = self._db.row(sql.NEWEST_CHECKPOINT, {"job_id": job_id})
        return None if row is None else manifest_of(row)

    def objects_of_job(self, job_id: str, shas: Collection[str] | None = None) -> dict[str, int]:
        if shas is None or len(shas) > LOOKED_UP_SINGLY:
            held: dict[str, int] = dict(self._db.rows(sql.OBJECTS_OF_JOB, {"job_id": job_id}))
            return held if shas is None else {sha256: held[sha256] for sha256 in held.keys() & set(shas)}
        asked = ((one, self._db.row(sql.OBJECT_OF_JOB, {"job_id": job_id, "sha256": one})) for one in shas)
        return {sha256: row[0] for sha256, row in asked if row is not None}

    def stored_bytes_of_job(self, job_id: str) -> int:
        return self._tally_of(STORED_BY_JOB, job_id)

    def stored_bytes_of(self, owner: str) -> int:
        return self._tally_of(STORED_BY_OWNER, owner)

    def stored_bytes_of_team(self, team: str) -> int:
        return self._tally_of(STORED_BY_TEAM, team)

    def stored_bytes_by_owner(self) -> dict[str, int]:
        return self._tally(STORED_BY_OWNER)

    def stored_bytes_of_jobs(self) -> int:
        return self._tally_of(STORED, "")

    def stored_is_miscounted(self) -> bool:
        return self._db.row(sql.STORED_IS_MISCOUNTED, {}) is not None

    def unused_objects(self, before: float, limit: int) -> list[tuple[str, str]]:
        rows = self._db.rows(sql.UNUSED_OBJECTS, {"before": float(before), "limit": limit})
        return [(row[0], row[1]) for row in rows]

    def endings(self, after: Ending, before: float, limit: int) -> list[Ending]:
        params = {"at": after.at, "job_id": after.job_id, "before": float(before), "limit": limit}
        return [Ending(at=row[0], job_id=row[1]) for row in self._db.rows(sql.ENDINGS, params)]

    def object_has_owner(self, sha256: str) -> bool:
        return self._db.row(sql.OBJECT_HAS_OWNER, {"sha256": sha256}) is not None

    def notes_of_job(self, job_id: str) -> list[JobNote]:
        return [note_of(row) for row in self._db.rows(sql.NOTES_OF_JOB, {"job_id": job_id})]


class UploadsTx(UploadsView):
    def add_manifest(self, manifest: StoredManifest) -> None:
        if not self._db.run(sql.ADD_MANIFEST, manifest_params(manifest)):
            raise ConcurrentChange(f"there is a manifest {manifest.id} already")

    def pin_manifest(self, manifest_id: str, by: str) -> None:
        self._db.run(sql.PIN_MANIFEST, {"id": manifest_id, "by": by})

    def delete_manifest(self, manifest_id: str) -> None:
        self._db.run(sql.DELETE_MANIFEST, {"id": manifest_id})

    def own_object(self, job_id: str, sha256: str, size: int, at: float) -> None:
        named = {"job_id": job_id, "sha256": sha256}
        if self._db.run(sql.OWN_OBJECT, {**named, "size": size, "unused_since": at}):
            count_stored_file(self._db, job_id, sha256, size)
        else:
            self._db.run(sql.OWN_AGAIN, {**named, "unused_since": at})

    def own_objects(self, job_id: str, sizes: Mapping[str, int], at: float) -> None:
        held = self.objects_of_job(job_id, sizes.keys())
        by_any = self._held_by_any(list(sizes))
        new = {sha256: size for sha256, size in sizes.items() if sha256 not in held}
        row: dict[str, Any] = {"job_id": job_id, "unused_since": at}
        self._db.many(sql.OWN_OBJECT, [{**row, "sha256": one, "size": size} for one, size in new.items()])
        self._db.many(sql.OWN_AGAIN, [{**row, "sha256": one} for one in held])
        of_content = sum(size for sha256, size in new.items() if sha256 not in by_any)
        count_stored(self._db, job_id, sum(new.values()), of_content=of_content)

    def recount_stored(self) -> None:
        recount_stored(self._db)

    def mark_objects(self, job_id: str, shas: Collection[str], unused_since: float | None) -> None:
        self._db.many(
            sql.MARK_OBJECT,
            [{"job_id": job_id, "sha256": sha256, "unused_since": unused_since} for sha256 in shas],
        )

    def disown_objects(self, rows: Collection[tuple[str, str]]) -> None:
        shas_of: dict[str, set[str]] = {}
        for job_id, sha256 in rows:
            shas_of.setdefault(job_id, set()).add(sha256)
        held = {job_id: self.objects_of_job(job_id, shas) for job_id, shas in shas_of.items()}
        self._db.many(sql.DISOWN_OBJECT, [{"job_id": job_id, "sha256": sha256} for job_id, sha256 in rows])
        sizes = {sha256: size for of_job in held.values() for sha256, size in of_job.items()}
        gone = sum(sizes[sha256] for sha256 in sizes.keys() - self._held_by_any(list(sizes)))
        for job_id, of_job in held.items():
            count_stored(self._db, job_id, -sum(of_job.values()), of_content=0)
        count_content(self._db, -gone)

    def _held_by_any(self, shas: Sequence[str]) -> set[str]:
        held: set[str] = set()
        for at in range(0, len(shas), NAMED_AT_ONCE):
            named = {f"sha256_{number}": one for number, one in enumerate(shas[at : at + NAMED_AT_ONCE])}
            statement = sql.CONTENT_HELD.format(names=", ".join(f":{name}" for name in named))
            held |= {row[0] for row in self._db.rows(statement, named)}
        return held

    def add_notes(self, notes: Sequence[JobNote]) -> int:
        return sum(self._db.run(sql.ADD_NOTE, note_params(note)) for note in notes)
