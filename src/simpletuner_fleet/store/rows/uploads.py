"""Converts manifests and notes to parameters of a row, and reads them back."""

from typing import Any

import msgspec

from simpletuner_fleet.core.errors import UnreadableRow
from simpletuner_fleet.core.training.checkpoint import FileEntry, StoredManifest
from simpletuner_fleet.ports import JobNote
from simpletuner_fleet.store.rows.codec import UNREADABLE
from simpletuner_fleet.store.rows.text import storable, storable_json
from simpletuner_fleet.store.sql.database import Row

MANIFEST_COLUMNS = (
    *("id", "job_id", "attempt_id", "attempt_number", "epoch", "kind", "name", "step", "files"),
    *("total_bytes", "created_at", "worker_name", "pinned_by"),
)
NOTE_COLUMNS = ("id", "job_id", "attempt_number", "at", "kind", "text", "data")

_encode = msgspec.json.Encoder(order="deterministic").encode
_files = msgspec.json.Decoder(tuple[FileEntry, ...]).decode
_object = msgspec.json.Decoder(dict[str, Any]).decode


def manifest_params(manifest: StoredManifest) -> dict[str, Any]:
    return {
        "id": manifest.id,
        "job_id": manifest.job_id,
        "attempt_id": manifest.attempt_id,
        "attempt_number": manifest.attempt_number,
        "epoch": manifest.epoch,
        "kind": manifest.kind,
        "name": manifest.name,
        "step": manifest.step,
        "files": _encode(manifest.files).decode(),
        "total_bytes": manifest.total_bytes,
        "created_at": manifest.created_at,
        "worker_name": storable(manifest.worker_name),
        "pinned_by": manifest.pinned_by,
    }


def manifest_of(row: Row) -> StoredManifest:
    """Returns the manifest of a row of MANIFEST_COLUMNS; raises UnreadableRow."""
    try:
        files = _files(row[8])
    except UNREADABLE as error:
        raise UnreadableRow(f"The checkpoint {row[0]} cannot be read: {error}") from error
    return StoredManifest(
        id=row[0],
        job_id=row[1],
        attempt_id=row[2],
        attempt_number=row[3],
        epoch=row[4],
        kind=row[5],
        name=row[6],
        step=row[7],
        files=files,
        total_bytes=row[9],
        created_at=row[10],
        worker_name=row[11],
        pinned_by=row[12],
    )


def note_params(note: JobNote) -> dict[str, Any]:
    return {
        "id": storable(note.id),
        "job_id": note.job_id,
        "attempt_number": note.attempt_number,
        "at": note.at,
        "kind": storable(note.kind),
        "text": storable(note.text),
        "data": _encode(storable_json(note.data)).decode(),
    }


def note_of(row: Row) -> JobNote:
    """Returns the note of a row of NOTE_COLUMNS."""
    return JobNote(
        id=row[0],
        job_id=row[1],
        attempt_number=row[2],
        at=row[3],
        kind=row[4],
        text=row[5],
        data=_object(row[6]),
    )
