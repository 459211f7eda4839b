"""Shows where a job's model was published, and publishes it on request."""

from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.bounds import Name, Path
from simpletuner_fleet.core.publishing import Publish
from simpletuner_fleet.http.api.deps import deps_of
from simpletuner_fleet.http.api.ownership import refuse_job_of_another
from simpletuner_fleet.http.edge.routes import Call, Route
from simpletuner_fleet.http.views.jobs import PublicationView, publication_view
from simpletuner_fleet.orchestrator import publishing

TAGS = ("jobs",)


class PublishBody(Struct, kw_only=True, forbid_unknown_fields=True):
    to: Path | None = None
    """hf://OWNER/NAME or folder://NAME; where it was to go before, if it is left out."""
    secret: Name | None = None
    """The name of the stored secret that holds the Hub's token."""
    private: bool = True
    branch: Name = "main"


async def get_publication(call: Call[None]) -> PublicationView:
    return publication_view(await publishing.publication_of(deps_of(call).fleet, call.path["id"]))


async def publish(call: Call[PublishBody | None]) -> PublicationView:
    await refuse_job_of_another(call)
    deps = deps_of(call)
    body = call.body or PublishBody()
    asked: Any = None
    if body.to is not None:
        asked = Publish(to=body.to, secret=body.secret, private=body.private, branch=body.branch)
    asked_for = await publishing.ask(deps.fleet, call.path["id"], asked, call.actor, call.principal.owns_as)
    if deps.publisher is not None:
        deps.publisher.wake()
    return publication_view(asked_for)


ROUTES = [
    Route(
        "GET",
        "/api/jobs/{id}/publication",
        get_publication,
        "jobs.read",
        answer=PublicationView,
        summary="Where the job's model is published, or how far that is",
        tags=TAGS,
    ),
    Route(
        "POST",
        "/api/jobs/{id}/publish",
        publish,
        "jobs.retry",
        PublishBody,
        PublicationView,
        "Publish a completed job's model, or try again what was given up",
        body_required=False,
        tags=TAGS,
    ),
]
