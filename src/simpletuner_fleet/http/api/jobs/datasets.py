"""Serves datasets: pushed and fetched by people, and fetched by workers for a job that names them."""

from msgspec import Struct

from simpletuner_fleet.core.bounds import Count
from simpletuner_fleet.core.configs.bundle import check_name
from simpletuner_fleet.core.configs.datasets import Dataset, prefixed_id, read_id
from simpletuner_fleet.core.errors import Invalid, TooLarge
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.artifacts import file_answer
from simpletuner_fleet.http.api.jobs.byte_ranges import octet_headers, read_through
from simpletuner_fleet.http.api.ownership import writer_of
from simpletuner_fleet.http.api.workers.uploads import (
    MAX_OBJECTS_BYTES,
    PIECE_BYTES,
    FetchQuery,
    fetching_worker,
)
from simpletuner_fleet.http.edge.bodies import Incoming
from simpletuner_fleet.http.edge.routes import KIB, UPLOAD, Call, Reply, Route, rfc3339
from simpletuner_fleet.http.edge.streams import Chunks
from simpletuner_fleet.http.views.jobs import Done
from simpletuner_fleet.protocol.data import DataObjectsAsked, DatasetSent
from simpletuner_fleet.protocol.uploads import PART_BYTES, ObjectsAnswer, PartAnswer
from simpletuner_fleet.storage import datasets
from simpletuner_fleet.storage.uploads import content
from simpletuner_fleet.storage.uploads.datasets import DatasetUploads

READ, WRITE = "data.read", "data.write"
TAGS = ("data",)
MAX_ASKED = 10_000


class DataPartQuery(Struct, kw_only=True):
    offset: Count
    """The offset of the first byte of this part."""
    size: Count
    """The size of the whole file."""


class DatasetView(Struct, kw_only=True):
    id: str
    name: str
    files: int
    total_bytes: int
    """The same content counts once."""
    created_at: str | None
    created_by: str
    owner: str
    """The id of who may rename and delete it; empty: administrators alone."""
    team: str
    """The id of the team that it belongs to; empty where it belongs to none."""
    visibility: str
    """Who may see it beside its owner: private, team or everybody."""


class DatasetListView(Struct):
    datasets: list[DatasetView]


class DatasetDetails(DatasetView, kw_only=True):
    manifest: str
    """Where its list of files is: an object of the dataset like any other."""
    manifest_bytes: int
    workers: list[str]
    """Names of those that have it in their cache."""


async def ask_objects(call: Call[DataObjectsAsked]) -> ObjectsAnswer:
    if len(call.body.objects) > MAX_ASKED:
        raise TooLarge(f"At most {MAX_ASKED} files can be asked for at once.")
    storage = deps_of(call).storage
    owner = DatasetUploads(storage, call.principal.id)
    return ObjectsAnswer(missing=await content.missing(storage, owner, call.body.objects))


async def put_part(call: Call[Incoming]) -> PartAnswer:
    query: DataPartQuery = call.query
    storage = deps_of(call).storage
    return await content.put_part(
        storage,
        DatasetUploads(storage, call.principal.id),
        call.path["sha256"],
        query.size,
        query.offset,
        call.body.pieces(PIECE_BYTES),
    )


async def add_dataset(call: Call[DatasetSent]) -> DatasetView:
    name = check_name(call.body.name, "$.name", "dataset's name")
    dataset_id = read_id(call.body.id, "$.id")
    accepted = await datasets.accept(
        deps_of(call).storage, dataset_id, name, writer_of(call), call.body.team, call.body.visibility
    )
    return _view(accepted)


async def list_datasets(call: Call[None]) -> DatasetListView:
    return DatasetListView([_view(dataset) for dataset in await datasets.all_datasets(deps_of(call).fleet)])


async def get_dataset(call: Call[None]) -> DatasetDetails:
    fleet, dataset_id = deps_of(call).fleet, _id(call)
    dataset = await datasets.dataset_of(fleet, dataset_id)
    workers = await fleet.read(lambda view: view.workers())
    return DatasetDetails(
        **{name: getattr(_view(dataset), name) for name in DatasetView.__struct_fields__},
        manifest=f"/api/data/{prefixed_id(dataset_id)}/objects/{dataset_id}",
        manifest_bytes=dataset.manifest_bytes,
        workers=[worker.name for worker in workers if dataset_id in worker.datasets],
    )


async def delete_dataset(call: Call[None]) -> Done:
    dataset_id = _id(call)
    await datasets.delete(deps_of(call).fleet, dataset_id, writer_of(call))
    return Done(id=prefixed_id(dataset_id))


async def one_object(call: Call[None]) -> Chunks | Reply:
    sha256 = call.path["sha256"]
    size = await datasets.file_size(deps_of(call).fleet, _id(call), sha256)
    return file_answer(call, FileEntry(path=sha256, size=size, sha256=sha256))


async def fetch_for_job(call: Call[None]) -> Chunks:
    deps, sha256, start = deps_of(call), call.path["sha256"], call.query.offset
    size = await datasets.size_for_worker(deps.fleet, fetching_worker(call), call.path["id"], sha256)
    if start > size:
        raise Invalid("offset is beyond the end.", path="$.offset")
    return Chunks(read_through(deps.blobs, sha256, start, size), headers=octet_headers(size - start))


def _id(call: Call[None]) -> str:
    return read_id(call.path["id"], "$.id")


def _view(dataset: Dataset) -> DatasetView:
    return DatasetView(
        id=prefixed_id(dataset.id),
        name=dataset.name,
        files=dataset.files,
        total_bytes=dataset.total_bytes,
        created_at=rfc3339(dataset.created_at),
        created_by=dataset.created_by,
        owner=dataset.owner,
        team=dataset.team,
        visibility=dataset.visibility,
    )


ROUTES = [
    Route(
        "POST",
        "/api/data/objects",
        ask_objects,
        WRITE,
        DataObjectsAsked,
        ObjectsAnswer,
        "Which of these files are missing, and from which byte on",
        max_body_bytes=MAX_OBJECTS_BYTES,
        tags=TAGS,
    ),
    Route(
        "PUT",
        "/api/data/objects/{sha256}",
        put_part,
        WRITE,
        bytes,
        PartAnswer,
        "A part of a file; the last one is answered when the whole is verified and stored",
        max_body_bytes=PART_BYTES,
        pieces=True,
        query=DataPartQuery,
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/data",
        add_dataset,
        WRITE,
        DatasetSent,
        DatasetView,
        "A dataset whose manifest and files are all stored; the same content again gets the new name",
        max_body_bytes=KIB,
        tags=TAGS,
    ),
    Route(
        "GET", "/api/data", list_datasets, READ, None, DatasetListView, "Datasets, newest first", tags=TAGS
    ),
    Route(
        "GET",
        "/api/data/{id}",
        get_dataset,
        READ,
        None,
        DatasetDetails,
        "One dataset and who has it",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/data/{id}",
        delete_dataset,
        WRITE,
        answer=Done,
        summary="Delete a dataset that no job needs any more",
        tags=TAGS,
    ),
    Route(
        "GET",
        "/api/data/{id}/objects/{sha256}",
        one_object,
        READ,
        summary="A file of a dataset by content, or a range of it; its ETag is its SHA-256",
        tags=TAGS,
        stream=True,
    ),
    Route(
        "GET",
        "/api/workers/job/{id}/data/{sha256}",
        fetch_for_job,
        UPLOAD,
        summary="A file of a dataset that the job this worker runs names, as bytes",
        query=FetchQuery,
        tags=("workers",),
        stream=True,
    ),
]
