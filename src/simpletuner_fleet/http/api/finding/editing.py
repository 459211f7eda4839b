"""Edits a waiting job in place; pins and unpins checkpoints."""

from simpletuner_fleet.core.jobs.submitting.editing import JobEdit
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.queue import current, submitter
from simpletuner_fleet.http.api.ownership import refuse_job_of_another
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.jobs import ManifestView, WholeJobView, manifest_view
from simpletuner_fleet.orchestrator.steering import editing
from simpletuner_fleet.storage import artifacts

TAGS = ("jobs",)
EDIT = "jobs.edit"


async def edit_job(call: Call[JobEdit]) -> WholeJobView:
    await refuse_job_of_another(call)
    deps = deps_of(call)
    await editing.edit(
        deps.fleet, call.path["id"], call.body, submitter(call), local_enabled=deps.local_enabled
    )
    return await current(call)


async def pin(call: Call[None]) -> ManifestView:
    await refuse_job_of_another(call)
    fleet, path = deps_of(call).fleet, call.path
    return manifest_view(await artifacts.pin(fleet, path["id"], path["manifest_id"], call.actor))


async def unpin(call: Call[None]) -> ManifestView:
    await refuse_job_of_another(call)
    fleet, path = deps_of(call).fleet, call.path
    return manifest_view(await artifacts.unpin(fleet, path["id"], path["manifest_id"], call.actor))


ROUTES = [
    Route(
        "PATCH",
        "/api/jobs/{id}",
        edit_job,
        EDIT,
        JobEdit,
        WholeJobView,
        "Edit a waiting job's request in place",
        tags=TAGS,
    ),
    Route(
        "PUT",
        "/api/jobs/{id}/artifacts/{manifest_id}/pin",
        pin,
        EDIT,
        answer=ManifestView,
        summary="Keep a checkpoint or an artifact from being deleted",
        tags=TAGS,
    ),
    Route(
        "DELETE",
        "/api/jobs/{id}/artifacts/{manifest_id}/pin",
        unpin,
        EDIT,
        answer=ManifestView,
        summary="Let retention delete it again",
        tags=TAGS,
    ),
]
