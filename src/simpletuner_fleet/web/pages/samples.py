"""Pictures a training made: found among its stored files, shown only if they are what they claim to be."""

from collections.abc import Sequence

from msgspec import Struct

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.training.checkpoint import FileEntry, StoredManifest
from simpletuner_fleet.core.training.samples import MAX_BYTES, MOST, drawn_order, is_picture, step_in
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.storage import artifacts


class Sample(Struct, frozen=True, kw_only=True):
    url: str
    name: str
    step: int | None
    sha256: str


def samples_of(manifests: Sequence[StoredManifest], most: int = MOST) -> list[Sample]:
    """Returns the pictures, newest first, each once however many checkpoints carry it."""
    samples: dict[str, Sample] = {}
    for manifest in reversed(manifests):
        pictures = [file for file in manifest.files if is_picture(file.path) and file.size <= MAX_BYTES]
        pictures.sort(key=lambda file: drawn_order(file.path, manifest.step), reverse=True)
        for file in pictures:
            if len(samples) < most:
                samples.setdefault(file.sha256, _sample(manifest, file))
    return list(samples.values())


def _sample(manifest: StoredManifest, file: FileEntry) -> Sample:
    step = step_in(file.path)
    return Sample(
        url=f"/jobs/{manifest.job_id}/pictures/{manifest.id}/{file.sha256}",
        name=file.path,
        step=manifest.step if step is None else step,
        sha256=file.sha256,
    )


def picture_type(head: bytes) -> str | None:
    """Decides by what the bytes are, never by their name: a page or a script must not come back as one."""
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "image/webp"
    return None


async def picture(call: Call[None]) -> Reply:
    deps, sha256 = deps_of(call), call.path["sha256"]
    manifest = await artifacts.manifest_of(deps.fleet, call.path["id"], call.path["manifest"])
    file = next((file for file in manifest.files if file.sha256 == sha256 and file.size <= MAX_BYTES), None)
    if file is None:
        raise NotFound("There is no such picture.")
    body = await deps.blobs.read_object(sha256, 0, file.size)
    kind = picture_type(body[:16])
    if kind is None:
        raise NotFound("This file is no picture.")
    return Reply(
        body=body,
        content_type=kind,
        headers={"cache-control": "private, max-age=31536000, immutable", "content-disposition": "inline"},
    )


ROUTES = (
    Route(
        "GET",
        "/jobs/{id}/pictures/{manifest}/{sha256}",
        picture,
        "jobs.read",
        summary="A picture that a training made",
    ),
)
