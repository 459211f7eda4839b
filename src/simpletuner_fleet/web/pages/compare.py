"""Shows up to eight jobs side by side: curves, differences of their configs, and samples at the same steps."""

from typing import Annotated

from msgspec import Meta, Struct

from simpletuner_fleet.core.bounds import Name
from simpletuner_fleet.http.api.deps import deps as deps_of
from simpletuner_fleet.http.edge.routes import Call, Reply, Route
from simpletuner_fleet.queries.comparison import MOST_RUNS, Comparison, compared, found_job
from simpletuner_fleet.storage import artifacts
from simpletuner_fleet.web.frame.environment import data_block
from simpletuner_fleet.web.frame.page import page, spoken, with_query
from simpletuner_fleet.web.parts.jobs.differences import cell_text
from simpletuner_fleet.web.parts.jobs.rows import job_row
from simpletuner_fleet.web.parts.samples.gallery import GalleryFrame, gallery_of, prompts_of


class ComparePageQuery(Struct, kw_only=True):
    job: Annotated[list[Name], Meta(max_length=MOST_RUNS)] = []
    add: Annotated[str, Meta(max_length=200)] = ""
    """A job's id or a part of its name."""


class PromptRow(Struct, frozen=True, kw_only=True):
    """Holds the samples for one prompt, with the name of the job that each frame is from."""

    title: str
    frames: list[tuple[str, GalleryFrame]]


async def compare(call: Call[None]) -> Reply:
    deps, query = deps_of(call), call.query
    ids = list(dict.fromkeys(query.job))
    wanted = query.add.strip()
    added = await found_job(deps.fleet, wanted) if wanted else None
    if added and added not in ids and len(ids) < MOST_RUNS:
        return Reply(body=b"", status=303, headers={"location": with_query("/compare", job=[*ids, added])})
    comparison = await compared(deps.fleet, ids)
    manifests = [await artifacts.manifests_of(deps.fleet, one) for one in ids]
    with spoken(call):
        rows = [job_row(seen) for seen in comparison.runs]
        titles = [row.title for row in rows]
        names = [row.title if titles.count(row.title) == 1 else f"{row.title} ({row.id})" for row in rows]
        galleries = [
            gallery_of(own, prompts_of(bundle))
            for own, bundle in zip(manifests, comparison.bundles, strict=True)
        ]
        return page(
            call,
            "jobs/compare.html",
            ids=ids,
            rows=rows,
            names=names,
            runs=data_block([{"id": id, "name": name} for id, name in zip(ids, names, strict=True)]),
            differences=_differences(comparison),
            hidden=comparison.differences.left_out,
            at_least=comparison.differences.left_out_at_least,
            prompts=_prompt_rows(names, galleries),
            missing=wanted if wanted and not added else "",
            full=len(ids) >= MOST_RUNS,
            with_query=with_query,
        )


def _differences(comparison: Comparison) -> list[tuple[str, list[str]]]:
    return [
        (one.path.removeprefix("$."), [cell_text(value) for value in one.values])
        for one in comparison.differences.fields
    ]


def _prompt_rows(names: list[str], galleries: list[list[GalleryFrame]]) -> list[PromptRow]:
    rows: dict[str, PromptRow] = {}
    for name, gallery in zip(names, galleries, strict=True):
        for frame in gallery:
            rows.setdefault(frame.id, PromptRow(title=frame.title, frames=[])).frames.append((name, frame))
    return [rows[id] for id in sorted(rows)]


ROUTES = (
    Route("GET", "/compare", compare, "jobs.read", summary="Runs side by side", query=ComparePageQuery),
)
