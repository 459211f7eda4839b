"""Changes the tags by which people find a job, and its note, whatever its state."""

from collections.abc import Sequence

from msgspec.structs import replace

from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.events import Actor, EventType
from simpletuner_fleet.core.jobs.decision import NOTHING, Decision, job_event
from simpletuner_fleet.core.jobs.finding import check_note, check_tags
from simpletuner_fleet.core.jobs.job import Job


def tagged(job: Job, add: Sequence[str], remove: Sequence[str], actor: Actor) -> Decision:
    """Adds and removes tags; to add one that is there, or to remove one that is not, changes nothing."""
    added, removed = check_tags(add, "$.add"), check_tags(remove, "$.remove")
    if both := set(added) & set(removed):
        raise Invalid(f"The tag '{min(both)}' cannot be both added and removed.", path="$.remove")
    tags = check_tags([tag for tag in (*job.tags, *added) if tag not in removed], "$.add")
    if tags == job.tags:
        return NOTHING
    event = job_event(EventType.JOB_TAGGED, job, actor, tags=list(tags), was=list(job.tags))
    return Decision(job=replace(job, tags=tags), events=(event,))


def noted(job: Job, note: str, actor: Actor) -> Decision:
    text = check_note(note)
    if text == job.note:
        return NOTHING
    event = job_event(EventType.JOB_NOTED, job, actor, note=text, was=job.note)
    return Decision(job=replace(job, note=text), events=(event,))
