"""Shows the datasets that the user may see, the content of each and its jobs, and the upload of a folder."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

from simpletuner_fleet.core.configs.dataset_pictures import DatasetListing, DatasetPart, DatasetPicture
from simpletuner_fleet.core.configs.datasets import Dataset, read_id
from simpletuner_fleet.core.people.ownership import may_change
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.core.training.samples import HEAD_BYTES, MAX_BYTES, picture_type
from simpletuner_fleet.http.api.admin.teams import known_teams
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.api.deps import visibility_scope_of
from simpletuner_fleet.http.api.ownership import writer_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.languages import N_
from simpletuner_fleet.languages.names import VISIBILITIES
from simpletuner_fleet.ports import Blobs
from simpletuner_fleet.queries import dataset_use
from simpletuner_fleet.storage import dataset_listings, datasets
from simpletuner_fleet.web.frame.page import page, spoken, with_query

LIST = "/datasets"
ROWS_PER_PAGE = 100
PICTURES_PER_PAGE = 24
PageNumber = Annotated[int, Meta(ge=1, le=100_000)]
PARTS = {
    DatasetPart.PICTURES: N_("Pictures"),
    DatasetPart.UNCAPTIONED: N_("Without a caption"),
    DatasetPart.FILES: N_("All files"),
}


class DatasetsQuery(Struct, kw_only=True):
    page: PageNumber = 1


class DatasetQuery(Struct, kw_only=True):
    show: DatasetPart | None = None
    page: PageNumber = 1


class DatasetRow(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    files: int
    total_bytes: int
    created_at: float
    owner: str
    team: str
    """Its name, for who belongs to it; empty for all others, and where there is none."""
    visibility: str


class ShownPicture(Struct, frozen=True, kw_only=True):
    path: str
    size: int
    url: str
    """Empty where it cannot be shown."""
    caption: str
    has_caption: bool
    too_large: bool


async def all_datasets(call: Call[None]) -> Reply:
    known, number = await datasets.all_datasets(deps_of(call).fleet), call.query.page
    shown = known[(number - 1) * ROWS_PER_PAGE : number * ROWS_PER_PAGE]
    return page(
        call,
        "data/datasets.html",
        rows=[_row(call, one) for one in shown],
        total=len(known),
        visibilities=VISIBILITIES,
        may_upload=call.principal.can("data.write"),
        **_turns(LIST, number, len(known), ROWS_PER_PAGE),
    )


async def one_dataset(call: Call[None]) -> Reply:
    deps, query = deps_of(call), call.query
    dataset = await datasets.dataset_of(deps.fleet, read_id(call.path["id"], "$.id"))
    files = await dataset_listings.listing(deps.storage, dataset)
    part = query.show or (DatasetPart.PICTURES if files.pictures else DatasetPart.FILES)
    size = ROWS_PER_PAGE if part is DatasetPart.FILES else PICTURES_PER_PAGE
    first = (query.page - 1) * size
    shown = files.part(part)[first : first + size]
    may_see_jobs = call.principal.can("jobs.read")
    use = await dataset_use.use_of(deps.fleet, dataset.id, jobs=may_see_jobs)
    path = f"{LIST}/{dataset.id}"
    with spoken(call):
        return page(
            call,
            "data/dataset.html",
            row=_row(call, dataset),
            part=part,
            parts_of=[
                (one, title, len(files.part(one)), with_query(path, show=str(one)))
                for one, title in PARTS.items()
            ],
            pictures=await _shown(deps.blobs, dataset.id, _pictures(files, part, first, size)),
            files=shown if part is DatasetPart.FILES else [],
            first=first + 1,
            last=first + len(shown),
            of=len(files.part(part)),
            use=use,
            visibilities=VISIBILITIES,
            may_see_jobs=may_see_jobs,
            may_delete=call.principal.can("data.write") and may_change(writer_of(call), dataset.owner),
            may_train=call.principal.can("queue.submit"),
            **_turns(path, query.page, len(files.part(part)), size, show=str(part)),
        )


async def upload(call: Call[None]) -> Reply:
    policy = deps_of(call).fleet.policy
    with spoken(call):
        return page(
            call,
            "data/upload.html",
            teams=known_teams(call),
            visibilities=VISIBILITIES,
            most_files=policy.max_dataset_files,
            most_bytes=policy.max_object_bytes,
        )


def _row(call: Call[Any], dataset: Dataset) -> DatasetRow:
    names, scope = deps_of(call).fleet.organisation.names, visibility_scope_of(call)
    knows_team = scope.above or dataset.team in scope.teams
    return DatasetRow(
        id=dataset.id,
        name=dataset.name,
        files=dataset.files,
        total_bytes=dataset.total_bytes,
        created_at=dataset.created_at,
        owner=names.get(dataset.owner, dataset.created_by),
        team=names.get(dataset.team, "") if knows_team else "",
        visibility=str(dataset.visibility),
    )


def _pictures(files: DatasetListing, part: DatasetPart, first: int, size: int) -> Sequence[DatasetPicture]:
    if part is DatasetPart.FILES:
        return ()
    return (files.pictures if part is DatasetPart.PICTURES else files.uncaptioned)[first : first + size]


async def _shown(blobs: Blobs, dataset_id: str, pictures: Sequence[DatasetPicture]) -> list[ShownPicture]:
    """Checks the first bytes of each file: the page does not load what is no image, whatever its name."""
    captions = await dataset_listings.captions_of(blobs, pictures)
    kinds = await asyncio.gather(*(_kind(blobs, one.file) for one in pictures))
    return [
        ShownPicture(
            path=one.file.path,
            size=one.file.size,
            url=f"{LIST}/{dataset_id}/pictures/{one.file.sha256}" if kind else "",
            caption=caption,
            has_caption=one.caption is not None,
            too_large=one.file.size > MAX_BYTES,
        )
        for one, caption, kind in zip(pictures, captions, kinds, strict=True)
    ]


async def _kind(blobs: Blobs, file: FileEntry) -> str | None:
    if not 0 < file.size <= MAX_BYTES:
        return None
    return picture_type(await blobs.read_object(file.sha256, 0, HEAD_BYTES))


def _turns(path: str, number: int, total: int, size: int, **more: Any) -> dict[str, Any]:
    return {
        "before": with_query(path, **more, page=number - 1) if number > 1 else None,
        "after": with_query(path, **more, page=number + 1) if total > number * size else None,
    }


ROUTES = (
    Route("GET", LIST, all_datasets, "data.read", summary="Datasets", query=DatasetsQuery),
    Route("GET", f"{LIST}/upload", upload, "data.write", summary="Upload a dataset"),
    Route("GET", f"{LIST}/{{id}}", one_dataset, "data.read", summary="A dataset", query=DatasetQuery),
)
