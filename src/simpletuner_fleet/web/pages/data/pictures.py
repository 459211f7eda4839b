"""Serves an image of a dataset, which anybody may have pushed, only if its bytes are those of an image."""

from simpletuner_fleet.core.configs.datasets import read_id
from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.training.samples import HEAD_BYTES, MAX_BYTES, picture_type
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.jobs.byte_ranges import read_through
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.edge.streams import Chunks
from simpletuner_fleet.storage import datasets

PATH = "/datasets/{id}/pictures/{sha256}"
NOTHING_RUNS = b"default-src 'none'; sandbox"
"""The policy of an answer that holds no page: if a browser took it for one all the same, nothing in it would run."""


async def picture(call: Call[None]) -> Chunks:
    """Serves the file by the type of its first bytes, not of its name: a page or a script is never served as one."""
    deps, sha256 = deps_of(call), call.path["sha256"]
    size = await datasets.file_size(deps.fleet, read_id(call.path["id"], "$.id"), sha256)
    if size > MAX_BYTES:
        raise NotFound("This picture is too large to be shown.", next_step="Fetch it: simpletuner data pull.")
    kind = picture_type(await deps.blobs.read_object(sha256, 0, HEAD_BYTES))
    if kind is None:
        raise NotFound("This file is no picture.")
    headers = [
        (b"content-type", kind.encode()),
        (b"content-length", b"%d" % size),
        (b"cache-control", b"private, max-age=31536000, immutable"),
        (b"content-disposition", b"inline"),
        (b"content-security-policy", NOTHING_RUNS),
        (b"cross-origin-resource-policy", b"same-origin"),
    ]
    return Chunks(read_through(deps.blobs, sha256, 0, size), headers=headers)


ROUTES = (Route("GET", PATH, picture, "data.read", summary="A picture of a dataset", stream=True),)
