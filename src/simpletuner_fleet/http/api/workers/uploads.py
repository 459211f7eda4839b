"""Takes what workers upload (files by content in parts, manifests last), and serves what they fetch to resume."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from msgspec import Struct

from simpletuner_fleet.core.bounds import Count, Whole
from simpletuner_fleet.core.errors import Invalid, TooLarge
from simpletuner_fleet.core.jobs.fencing import Claim, Turn, named_attempt, running_attempt
from simpletuner_fleet.core.training.direct import LEAST_BYTES
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.byte_ranges import octet_headers, read_through
from simpletuner_fleet.http.edge.bodies import Incoming
from simpletuner_fleet.http.edge.routes import KIB, UPLOAD, WORKER, Call, Route
from simpletuner_fleet.http.edge.streams import Chunks
from simpletuner_fleet.protocol.uploads import (
    TRIED_LINK_PATH,
    TRIED_PART_BYTES,
    TRIED_PART_PATH,
    TRIED_PART_SHA256,
    DirectAnswer,
    DirectAsked,
    DirectEnd,
    ManifestAnswer,
    ManifestSent,
    NotesAnswer,
    NotesSent,
    ObjectsAnswer,
    ObjectsAsked,
    PartAnswer,
    StorageLink,
    StorageTrial,
)
from simpletuner_fleet.storage import artifacts, notes
from simpletuner_fleet.storage.uploads import content, direct_flow
from simpletuner_fleet.storage.uploads.jobs import JobUploads

PIECE_BYTES = KIB * KIB
MOST_AT_ONCE_BYTES = KIB**4
"""No limit of its own: what a file may have is the policy's to say."""
MAX_OBJECTS_BYTES = 2 * KIB * KIB
MAX_MANIFEST_BYTES = 16 * KIB * KIB
MAX_NOTES, MAX_NOTE_CHARS, MAX_KIND_CHARS = 100, 4_000, 64
MAX_NOTE_DATA_BYTES = 4 * KIB
TAGS = ("workers",)


class PartQuery(Struct, kw_only=True):
    epoch: Whole
    offset: Count
    """The offset of the first byte of this part."""
    size: Count
    """The size of the whole file."""


class FetchQuery(Struct, kw_only=True):
    offset: Count = 0


async def ask_objects(call: Call[ObjectsAsked]) -> ObjectsAnswer:
    deps, body = deps_of(call), call.body
    claim = claim_of(call, body.epoch)
    if len(body.objects) > deps.fleet.policy.max_manifest_files:
        raise TooLarge(f"At most {deps.fleet.policy.max_manifest_files} files can be asked for at once.")
    owner = JobUploads(deps.fleet, claim)
    missing = await content.missing(deps.storage, owner, body.objects)
    return ObjectsAnswer(missing=missing, direct=deps.storage.direct_in_use is not None)


async def ask_direct(call: Call[DirectAsked]) -> DirectAnswer:
    owner = JobUploads(deps_of(call).fleet, claim_of(call, call.body.epoch))
    return await direct_flow.ask(deps_of(call).storage, owner, call.path["sha256"], call.body)


async def end_direct(call: Call[DirectEnd]) -> DirectAnswer:
    owner = JobUploads(deps_of(call).fleet, claim_of(call, call.body.epoch))
    return await direct_flow.finish(deps_of(call).storage, owner, call.path["sha256"], call.body.size)


async def put_part(call: Call[Incoming]) -> PartAnswer:
    query: PartQuery = call.query
    owner = JobUploads(deps_of(call).fleet, claim_of(call, query.epoch))
    return await content.put_part(
        deps_of(call).storage,
        owner,
        call.path["sha256"],
        query.size,
        query.offset,
        call.body.pieces(PIECE_BYTES),
    )


async def try_part(call: Call[Incoming]) -> PartAnswer:
    """Reads a part that belongs to nothing: a worker tests the way here before it has anything to send."""
    count = 0
    async for piece in call.body.pieces(PIECE_BYTES):
        count += len(piece)
    return PartAnswer(next_offset=count, complete=True)


async def try_storage(call: Call[None]) -> StorageTrial:
    """Returns links to read and to send something that belongs to nothing, for the same purpose."""
    direct = deps_of(call).storage.direct_in_use
    if direct is None:
        return StorageTrial()
    sent = direct.blobs.trial_link(TRIED_PART_BYTES, TRIED_PART_SHA256)
    return StorageTrial(url=direct.blobs.mark_link(), send_url=sent.url, headers=sent.headers)


async def send_manifest(call: Call[ManifestSent]) -> ManifestAnswer:
    body = call.body
    claim = claim_of(call, body.epoch)
    return await artifacts.accept_manifest(deps_of(call).fleet, claim, body.manifest)


async def fetch_object(call: Call[None]) -> Chunks:
    deps, sha256, start = deps_of(call), call.path["sha256"], call.query.offset
    size = await artifacts.size_for_worker(deps.fleet, fetching_worker(call), call.path["id"], sha256)
    if start > size:
        raise Invalid("offset is beyond the end.", path="$.offset")
    chunks: AsyncGenerator[bytes, None] = read_through(deps.blobs, sha256, start, size)
    return Chunks(chunks, headers=octet_headers(size - start))


async def link_to_object(call: Call[None]) -> StorageLink:
    deps, sha256 = deps_of(call), call.path["sha256"]
    size = await artifacts.size_for_worker(deps.fleet, fetching_worker(call), call.path["id"], sha256)
    direct = deps.storage.direct_in_use
    return StorageLink(url=direct.object_link(sha256, sha256) if direct and size >= LEAST_BYTES else "")


async def send_notes(call: Call[NotesSent]) -> NotesAnswer:
    body = call.body
    claim = claim_of(call, body.epoch)
    if len(body.notes) > MAX_NOTES:
        raise TooLarge(f"At most {MAX_NOTES} notes can be sent at once.")
    for at, note in enumerate(body.notes):
        if not (0 < len(note.id) <= MAX_KIND_CHARS and 0 < len(note.kind) <= MAX_KIND_CHARS):
            raise Invalid(f"id and kind have 1 to {MAX_KIND_CHARS} characters.", path=f"$.notes[{at}].kind")
        if len(note.text) > MAX_NOTE_CHARS:
            raise Invalid(f"A note has at most {MAX_NOTE_CHARS} characters.", path=f"$.notes[{at}].text")
        if len(msgspec.json.encode(note.data)) > MAX_NOTE_DATA_BYTES:
            raise Invalid(
                f"The data of a note has at most {MAX_NOTE_DATA_BYTES} bytes.", path=f"$.notes[{at}].data"
            )
    stored = await notes.add_notes(deps_of(call).fleet, claim, body.notes)
    return NotesAnswer(stored=stored)


def claim_of(call: Call[Any], epoch: int) -> Claim:
    """Returns who writes, and for which turn. An attempt's own token is valid for that attempt alone."""
    attempt, turn = call.principal.attempt, Turn(call.path["id"], epoch)
    if attempt is None:
        return Claim(call.principal.id, turn)
    return Claim(named_attempt(attempt, *turn).worker_id, turn, by_attempt=True)


def fetching_worker(call: Call[Any]) -> str:
    attempt = call.principal.attempt
    if attempt is None:
        return call.principal.id
    worker_id = named_attempt(attempt, call.path["id"], None).worker_id
    return running_attempt(attempt, worker_id).worker_id


ROUTES = [
    Route(
        "POST",
        "/api/workers/job/{id}/objects",
        ask_objects,
        UPLOAD,
        ObjectsAsked,
        ObjectsAnswer,
        "Which of these files are missing, and from which byte on",
        max_body_bytes=MAX_OBJECTS_BYTES,
        tags=TAGS,
    ),
    Route(
        "PUT",
        TRIED_PART_PATH,
        try_part,
        WORKER,
        bytes,
        PartAnswer,
        "A part of no file, to see whether parts arrive: it is read and forgotten",
        max_body_bytes=TRIED_PART_BYTES,
        pieces=True,
        tags=TAGS,
    ),
    Route(
        "GET",
        TRIED_LINK_PATH,
        try_storage,
        WORKER,
        answer=StorageTrial,
        summary="Links into the storage, to see whether it can be reached; none where files go through the orchestrator",
        tags=TAGS,
    ),
    Route(
        "PUT",
        "/api/workers/job/{id}/objects/{sha256}",
        put_part,
        UPLOAD,
        bytes,
        PartAnswer,
        "A part of a file; the last one is answered when the whole is verified and stored",
        max_body_bytes=MOST_AT_ONCE_BYTES,
        pieces=True,
        query=PartQuery,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/workers/job/{id}/objects/{sha256}/direct",
        ask_direct,
        UPLOAD,
        DirectAsked,
        DirectAnswer,
        "Begin to send a file straight to the storage, or go on; a signed link for one part of it",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/workers/job/{id}/objects/{sha256}/direct/end",
        end_direct,
        UPLOAD,
        DirectEnd,
        DirectAnswer,
        "All parts were sent straight to the storage; answered when it has verified the whole",
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/workers/job/{id}/objects/{sha256}",
        fetch_object,
        UPLOAD,
        summary="A file of a checkpoint or artifact of the job this worker runs, as bytes",
        query=FetchQuery,
        tags=TAGS,
        stream=True,
    ),
    Route(
        "GET",
        "/api/workers/job/{id}/objects/{sha256}/link",
        link_to_object,
        UPLOAD,
        answer=StorageLink,
        summary="Where this file can be read straight from the storage, for a short time",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/workers/job/{id}/manifests",
        send_manifest,
        UPLOAD,
        ManifestSent,
        ManifestAnswer,
        "A checkpoint or artifact whose files are all stored; saying so again is harmless",
        max_body_bytes=MAX_MANIFEST_BYTES,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/workers/job/{id}/notes",
        send_notes,
        UPLOAD,
        NotesSent,
        NotesAnswer,
        "Remarks on an attempt, shown with the job's events",
        tags=TAGS,
    ),
]
