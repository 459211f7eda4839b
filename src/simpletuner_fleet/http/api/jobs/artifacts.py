"""Serves checkpoints and artifacts: as a list, as single files, or all as an archive."""

import tarfile
from collections.abc import AsyncGenerator
from typing import Any

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.training.checkpoint import FileEntry, StoredManifest
from simpletuner_fleet.core.training.direct import LEAST_BYTES
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.byte_ranges import (
    Span,
    asked_span,
    attachment,
    octet_headers,
    read_through,
)
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.http.edge.streams import Chunks
from simpletuner_fleet.http.views.jobs import ManifestsView, manifest_view
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.protocol.uploads import DIRECT_HEADER
from simpletuner_fleet.storage import artifacts

TAGS = ("jobs",)
FILE_MODE = 0o644


async def list_artifacts(call: Call[None]) -> ManifestsView:
    stored = await artifacts.manifests_of(deps_of(call).fleet, call.path["id"])
    return ManifestsView([manifest_view(manifest) for manifest in stored])


async def one_file(call: Call[None]) -> Chunks | Reply:
    return file_answer(call, _file_at(await _manifest(call), call.path["path"]))


def file_answer(call: Call[None], file: FileEntry) -> Chunks | Reply:
    """Answers with the whole file, or with the range that was asked for."""
    etag = f'"{file.sha256}"'
    headers = call.headers
    ranged = headers.get("range") if headers.get("if-range", etag) == etag else None
    span = asked_span(ranged, file.size)
    if span and span.start >= span.end:
        return Reply(
            body=b"",
            status=416,
            headers={"Content-Range": f"bytes */{file.size}"},
            content_type="application/octet-stream",
        )
    link = _link_for(call, file)
    if link:
        return Reply(body=b"", status=307, headers={"Location": link, "Cache-Control": "no-store"})
    return _answer(deps_of(call).blobs, file, etag, span)


def _link_for(call: Call[None], file: FileEntry) -> str:
    """Returns a link by which the caller reads the file from the storage itself; '' where it has to come through here.

    A program says that it can do so, since it must come back where it cannot. A browser cannot come back: it is sent
    there only where an administrator says that browsers reach the storage, and only to save a file.
    """
    direct = deps_of(call).storage.direct_in_use
    if direct is None or file.size < LEAST_BYTES:
        return ""
    saves = direct.for_browsers and call.headers.get("sec-fetch-mode") == "navigate"
    if not saves and DIRECT_HEADER not in call.headers:
        return ""
    return direct.object_link(file.sha256, file.path.rpartition("/")[2])


def _answer(blobs: Blobs, file: FileEntry, etag: str, span: Span | None) -> Chunks:
    start, end = (span.start, span.end) if span else (0, file.size)
    headers = [
        *octet_headers(end - start),
        (b"accept-ranges", b"bytes"),
        (b"etag", etag.encode()),
        (b"content-disposition", attachment(file.path.rpartition("/")[2])),
    ]
    if span:
        headers.append((b"content-range", b"bytes %d-%d/%d" % (start, end - 1, file.size)))
    return Chunks(read_through(blobs, file.sha256, start, end), headers=headers, status=206 if span else 200)


async def archive(call: Call[None]) -> Chunks:
    manifest = await _manifest(call)
    headers = [
        (b"content-type", b"application/x-tar"),
        (b"cache-control", b"no-store"),
        (b"content-disposition", attachment(f"{manifest.job_id}-{manifest.name}.tar")),
    ]
    return Chunks(_tar(deps_of(call).blobs, manifest), headers=headers)


async def _tar(blobs: Blobs, manifest: StoredManifest) -> AsyncGenerator[bytes, None]:
    for file in manifest.files:
        yield _tar_head(manifest, file)
        async for chunk in read_through(blobs, file.sha256, 0, file.size):
            yield chunk
        yield bytes(-file.size % tarfile.BLOCKSIZE)
    yield bytes(2 * tarfile.BLOCKSIZE)


def _tar_head(manifest: StoredManifest, file: FileEntry) -> bytes:
    entry = tarfile.TarInfo(f"{manifest.name}/{file.path}")
    entry.size = file.size
    entry.mtime = int(manifest.created_at)
    entry.mode = FILE_MODE
    return entry.tobuf(tarfile.PAX_FORMAT)


async def _manifest(call: Call[None]) -> StoredManifest:
    return await artifacts.manifest_of(deps_of(call).fleet, call.path["id"], call.path["manifest_id"])


def _file_at(manifest: StoredManifest, path: str) -> FileEntry:
    for file in manifest.files:
        if file.path == path:
            return file
    raise NotFound(f"{manifest.name} has no file '{path[:200]}'.")


def _get(path: str, handler: Any, summary: str, **more: Any) -> Route:
    return Route("GET", path, handler, "jobs.read", summary=summary, tags=TAGS, **more)


ROUTES = [
    _get(
        "/api/jobs/{id}/artifacts",
        list_artifacts,
        "Checkpoints and artifacts of a job, oldest first",
        answer=ManifestsView,
    ),
    _get(
        "/api/jobs/{id}/artifacts/{manifest_id}/files/{path}",
        one_file,
        "One file, or a range of it; its ETag is its SHA-256",
        stream=True,
        rest=True,
    ),
    _get("/api/jobs/{id}/artifacts/{manifest_id}/archive", archive, "All files, as a tar", stream=True),
]
