"""Sets tags and a note on a job."""

from msgspec import Struct

from simpletuner_fleet.core.bounds import FreeText
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.jobs.queue import current
from simpletuner_fleet.http.api.ownership import refuse_job_of_another
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.jobs import WholeJobView
from simpletuner_fleet.orchestrator.steering import marking

TAGS = ("jobs",)
EDIT = "jobs.edit"


class TagsBody(Struct, kw_only=True, forbid_unknown_fields=True):
    add: list[FreeText] = []
    remove: list[FreeText] = []


class JobNoteBody(Struct, kw_only=True, forbid_unknown_fields=True):
    note: FreeText
    """Empty: no note any more."""


async def change_tags(call: Call[TagsBody]) -> WholeJobView:
    await refuse_job_of_another(call)
    await marking.tag(deps_of(call).fleet, call.path["id"], call.body.add, call.body.remove, call.actor)
    return await current(call)


async def set_note(call: Call[JobNoteBody]) -> WholeJobView:
    await refuse_job_of_another(call)
    await marking.set_note(deps_of(call).fleet, call.path["id"], call.body.note, call.actor)
    return await current(call)


ROUTES = [
    Route(
        "POST",
        "/api/jobs/{id}/tags",
        change_tags,
        EDIT,
        TagsBody,
        WholeJobView,
        "Add and remove tags of a job",
        tags=TAGS,
    ),
    Route(
        "PUT",
        "/api/jobs/{id}/note",
        set_note,
        EDIT,
        JobNoteBody,
        WholeJobView,
        "Write a note on a job",
        tags=TAGS,
    ),
]
