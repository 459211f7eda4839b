"""Serves an image that a training made, only if its bytes are those of an image."""

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.training.samples import HEAD_BYTES, MAX_BYTES, picture_type
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.storage import artifacts


async def picture(call: Call[None]) -> Reply:
    deps, sha256 = deps_of(call), call.path["sha256"]
    manifest = await artifacts.manifest_of(deps.fleet, call.path["id"], call.path["manifest"])
    file = next((file for file in manifest.files if file.sha256 == sha256 and file.size <= MAX_BYTES), None)
    if file is None:
        raise NotFound("There is no such picture.")
    body = await deps.blobs.read_object(sha256, 0, file.size)
    kind = picture_type(body[:HEAD_BYTES])
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
