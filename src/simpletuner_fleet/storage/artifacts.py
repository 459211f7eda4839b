"""Checkpoints and artifacts as they arrive, as they are kept, and as they are let go.

A job reads and names only what it has uploaded itself, however many others hold the same content: knowing a SHA-256
gives nobody the bytes. Bytes are shared below, in the storage.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from simpletuner_fleet.core import checkpoint, samples
from simpletuner_fleet.core.checkpoint import FileEntry, Manifest, StoredManifest
from simpletuner_fleet.core.decision import Decision
from simpletuner_fleet.core.errors import (
    DigestMismatch,
    Invalid,
    NotFound,
    ObjectsMissing,
    QuotaExceeded,
    StaleAttempt,
)
from simpletuner_fleet.core.fencing import Writer
from simpletuner_fleet.core.job import Attempt, Job
from simpletuner_fleet.orchestrator.desk import Desk
from simpletuner_fleet.orchestrator.dispatch import unreachable_checkpoints
from simpletuner_fleet.orchestrator.fleet import Fleet
from simpletuner_fleet.ports import Blobs, JobNote, View
from simpletuner_fleet.protocol.uploads import (
    ManifestAnswer,
    Note,
    ObjectAsked,
    ObjectMissing,
    PartAnswer,
)
from simpletuner_fleet.storage.fenced import job_run_by, newest_attempt
from simpletuner_fleet.storage.storage import Storage

log = logging.getLogger(__name__)

UPLOADS = "uploads"
MISSING_TOLD = 1000
ROWS_PER_ROUND = 500


def part_key(job_id: str, sha256: str) -> str:
    """Parts are kept per job, so that nobody can spoil another job's upload."""
    return f"{UPLOADS}/{job_id}/{sha256}"


async def missing(storage: Storage, writer: Writer, asked: Sequence[ObjectAsked]) -> list[ObjectMissing]:
    fleet = storage.fleet
    for at, one in enumerate(asked):
        checkpoint.check_object(one.sha256, one.size, fleet.policy, f"$.objects[{at}]")
    held = await fleet.read(lambda view: _own_uploads(view, writer))
    wanted = {one.sha256: one.size for one in asked if one.sha256 not in held}
    _check_quota(fleet, held, sum(wanted.values()))
    job_id = writer.job_id
    begun = set(await storage.blobs.names(f"{UPLOADS}/{job_id}")) if wanted else set()
    return [
        ObjectMissing(
            sha256=sha256,
            offset=await storage.blobs.part_size(part_key(job_id, sha256)) if sha256 in begun else 0,
        )
        for sha256 in wanted
    ]


async def put_part(
    storage: Storage,
    writer: Writer,
    sha256: str,
    size: int,
    offset: int,
    pieces: AsyncIterator[bytes],
) -> PartAnswer:
    fleet, job_id = storage.fleet, writer.job_id
    checkpoint.check_object(sha256, size, fleet.policy)
    if offset > size:
        raise Invalid("offset leads beyond the size.", path="$.offset")
    if offset == 0:
        held = await fleet.read(lambda view: _own_uploads(view, writer))
        if sha256 in held:
            return PartAnswer(next_offset=size, complete=True)
        _check_quota(fleet, held, size + await _under_way(storage, job_id, sha256))
    else:
        await fleet.glance(lambda view: newest_attempt(view, writer))
    reached = await write_pieces(storage.blobs, part_key(job_id, sha256), size, offset, pieces)
    if reached < offset and await _was_finished(storage, job_id, sha256):
        return PartAnswer(next_offset=size, complete=True)
    if reached < size:
        return PartAnswer(next_offset=reached, complete=False)
    await _finish(storage, writer, sha256, size)
    return PartAnswer(next_offset=size, complete=True)


async def write_pieces(blobs: Blobs, key: str, size: int, offset: int, pieces: AsyncIterator[bytes]) -> int:
    """One piece is written while the next arrives; what was written stays, however the request ends."""
    at, reached, writing = offset, 0, None
    try:
        async for piece in pieces:
            if writing:
                reached = await writing
                if reached < at:
                    return reached
            if at + len(piece) > size:
                raise Invalid("offset and length lead beyond the size.", path="$.offset")
            writing = asyncio.ensure_future(blobs.put_part(key, at, piece))
            at += len(piece)
    finally:
        if writing:
            reached = await writing
    return reached


async def _is_stored(fleet: Fleet, job_id: str, sha256: str) -> bool:
    return sha256 in await fleet.read(lambda view: view.objects_of_job(job_id))


async def _was_finished(storage: Storage, job_id: str, sha256: str) -> bool:
    """By another request that carried the same part: if it is at it right now, its end is waited for."""
    async with storage.holding(sha256):
        return await _is_stored(storage.fleet, job_id, sha256)


async def _finish(storage: Storage, writer: Writer, sha256: str, size: int) -> None:
    """The lock spans the sealing and the row: in between, the sweep would take the object for nobody's."""

    def own(desk: Desk) -> None:
        held = _own_uploads(desk.tx, writer)
        _check_quota(storage.fleet, held, size)
        desk.tx.own_object(writer.job_id, sha256, size, desk.now)

    async with storage.holding(sha256):
        if await _is_stored(storage.fleet, writer.job_id, sha256):
            return
        if not await storage.blobs.seal(part_key(writer.job_id, sha256), sha256, size):
            raise DigestMismatch(sha256)
        await storage.fleet.act(own)


async def _under_way(storage: Storage, job_id: str, but: str) -> int:
    others = [name for name in await storage.blobs.names(f"{UPLOADS}/{job_id}") if name != but]
    return sum([await storage.blobs.part_size(part_key(job_id, name)) for name in others])


def _check_quota(fleet: Fleet, held: dict[str, int], more: int) -> None:
    allowed = fleet.policy.job_storage_bytes
    if sum(held.values()) + more > allowed:
        raise QuotaExceeded(f"One job may store {allowed} bytes at a time.", quota_bytes=allowed)


async def accept_manifest(fleet: Fleet, writer: Writer, manifest: Manifest) -> ManifestAnswer:
    """The last word of an upload: in one transaction, fenced by the epoch, with retention in the same breath."""
    checkpoint.check_manifest(manifest, fleet.policy)
    return await fleet.act(lambda desk: _accept(desk, writer, manifest))


def _accept(desk: Desk, writer: Writer, manifest: Manifest) -> ManifestAnswer:
    attempt = desk.attempt(newest_attempt(desk.tx, writer).id)
    spoiled_from = attempt.resume_below
    if spoiled_from is not None and manifest.kind == "checkpoint" and (manifest.step or 0) >= spoiled_from:
        raise StaleAttempt(f"A watchdog found this attempt spoiled from step {spoiled_from} on.")
    job_id = writer.job_id
    known = desk.tx.manifests_of_job(job_id)
    manifest = samples.with_earlier(manifest, known)
    same = next((one for one in known if checkpoint.same_content(one, manifest)), None)
    if same is None:
        checkpoint.check_step_of_epoch(manifest, writer.turn.epoch, known)
        _check_stored(desk, job_id, manifest.files)
        same = _stored(desk, attempt, manifest)
        desk.tx.add_manifest(same)
        desk.tx.mark_objects(job_id, {file.sha256 for file in manifest.files}, None)
        _let_go(desk, desk.job(job_id), [*known, same])
    if manifest.kind == "checkpoint" and (attempt.checkpoint_step or -1) < (manifest.step or 0):
        desk.apply(Decision(attempt=replace(attempt, checkpoint_step=manifest.step)))
    desk.publish("job", id=job_id, status=desk.job(job_id).state, manifest=same.id, step=same.step)
    return ManifestAnswer(manifest_id=same.id)


def _check_stored(desk: Desk, job_id: str, files: Sequence[FileEntry]) -> None:
    held = desk.tx.objects_of_job(job_id)
    absent = sorted({file.sha256 for file in files if held.get(file.sha256) != file.size})
    if absent:
        raise ObjectsMissing(
            f"{len(absent)} of the files are not stored yet.",
            missing=absent[:MISSING_TOLD],
            count=len(absent),
        )


def _stored(desk: Desk, attempt: Attempt, manifest: Manifest) -> StoredManifest:
    return StoredManifest(
        id=desk.ids.new("m"),
        job_id=attempt.job_id,
        attempt_id=attempt.id,
        attempt_number=attempt.number,
        epoch=attempt.epoch,
        kind=manifest.kind,
        name=manifest.name,
        step=manifest.step,
        files=tuple(sorted(manifest.files, key=lambda file: file.path)),
        total_bytes=checkpoint.total_bytes(manifest.files),
        created_at=desk.now,
        worker_name=attempt.worker_name,
    )


def _let_go(desk: Desk, job: Job, manifests: list[StoredManifest]) -> None:
    current = desk.current_attempt(job)
    in_use = {current.resumed_manifest} if current and current.resumed_manifest else set()
    useless = unreachable_checkpoints(desk, job)
    _drop(
        desk, job.id, manifests, checkpoint.to_drop(manifests, desk.policy.checkpoints_keep, in_use, useless)
    )


def forget_spoiled(desk: Desk, job_id: str, below: int) -> None:
    """Checkpoints from a step on at which the training was spoiled: whoever goes on finds only good ones."""
    manifests = desk.tx.manifests_of_job(job_id)
    _drop(desk, job_id, manifests, checkpoint.spoiled(manifests, below))


def _drop(
    desk: Desk, job_id: str, manifests: Sequence[StoredManifest], dropped: Sequence[StoredManifest]
) -> None:
    for one in dropped:
        desk.tx.delete_manifest(one.id)
    gone = {one.id for one in dropped}
    named = {file.sha256 for one in manifests if one.id not in gone for file in one.files}
    freed = {file.sha256 for one in dropped for file in one.files} - named
    if freed:
        desk.tx.mark_objects(job_id, freed, desk.now)


async def add_notes(fleet: Fleet, writer: Writer, notes: Sequence[Note]) -> int:
    def step(desk: Desk) -> int:
        attempt = newest_attempt(desk.tx, writer)
        rows = [
            JobNote(
                id=f"{attempt.number}:{note.id}",
                job_id=writer.job_id,
                attempt_number=attempt.number,
                at=note.at,
                kind=note.kind,
                text=note.text,
                data=note.data,
            )
            for note in notes
        ]
        fresh = desk.tx.add_notes(rows)
        if fresh:
            desk.publish("job", id=writer.job_id, status=desk.job(writer.job_id).state, notes=fresh)
        return fresh

    return await fleet.act(step)


def _own_uploads(view: View, writer: Writer) -> dict[str, int]:
    newest_attempt(view, writer)
    return view.objects_of_job(writer.job_id)


async def size_for_worker(fleet: Fleet, worker_id: str, job_id: str, sha256: str) -> int:
    """Of an object that a manifest of the job names, for the worker that runs it now."""

    def look(view: View) -> int:
        job_run_by(view, worker_id, job_id)
        for one in view.manifests_of_job(job_id):
            for file in one.files:
                if file.sha256 == sha256:
                    return file.size
        raise NotFound("No checkpoint or artifact of this job has this file.")

    return await fleet.read(look)


async def manifests_of(fleet: Fleet, job_id: str) -> list[StoredManifest]:
    def look(view: View) -> list[StoredManifest]:
        if view.job(job_id) is None:
            raise NotFound(f"There is no job {job_id}.")
        return view.manifests_of_job(job_id)

    return await fleet.read(look)


async def manifest_of(fleet: Fleet, job_id: str, manifest_id: str) -> StoredManifest:
    found = await fleet.read(lambda view: view.manifest(manifest_id))
    if found is None or found.job_id != job_id:
        raise NotFound(f"Job {job_id} has no checkpoint or artifact {manifest_id}.")
    return found


async def sweep_objects(storage: Storage) -> int:
    """Lets go of content that nobody names any more. How many objects went."""
    before = storage.fleet.clock.now() - storage.fleet.policy.object_grace_s
    await _disown_unused(storage.fleet, before)
    await _drop_abandoned_parts(storage, before)
    gone = 0
    async for sha256 in storage.blobs.objects():
        gone += await _delete_if_nobodys(storage, sha256)
    if gone:
        log.info("swept %d stored files that no job has any more", gone)
    return gone


async def _disown_unused(fleet: Fleet, before: float) -> None:
    def step(desk: Desk) -> int:
        rows = desk.tx.unused_objects(before, ROWS_PER_ROUND)
        desk.tx.disown_objects(rows)
        return len(rows)

    while await fleet.act(step) == ROWS_PER_ROUND:
        pass


async def _drop_abandoned_parts(storage: Storage, before: float) -> None:
    """Of jobs that have ended; a job that may still run may still go on sending."""
    for job_id in await storage.blobs.names(UPLOADS):
        job = await storage.fleet.read(lambda view, job_id=job_id: view.job(job_id))  # type: ignore[misc]
        if job is None or (job.terminal and (job.finished_at or 0.0) < before):
            await storage.blobs.delete(f"{UPLOADS}/{job_id}")


async def _delete_if_nobodys(storage: Storage, sha256: str) -> bool:
    if await storage.fleet.read(lambda view: view.object_has_owner(sha256)):
        return False
    async with storage.holding(sha256):
        # Looked at again: whoever sealed it meanwhile has its row by now.
        if await storage.fleet.read(lambda view: view.object_has_owner(sha256)):
            return False
        await storage.blobs.delete_object(sha256)
        return True
