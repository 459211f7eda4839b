"""Publishes a job's model once it is stored, where its owner wants it, and retries until that succeeds.

Publishing never changes the job: a job that completed stays completed, whatever becomes of this.
"""

import re
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.bounds import Name, Path
from simpletuner_fleet.core.errors import Invalid, WrongJobState
from simpletuner_fleet.core.jobs.job import Job, JobState
from simpletuner_fleet.core.training.checkpoint import FileEntry, StoredManifest, newest_checkpoint
from simpletuner_fleet.core.training.samples import SAMPLES

HUB = re.compile(r"hf://([A-Za-z0-9][A-Za-z0-9._-]{0,95})/([A-Za-z0-9][A-Za-z0-9._-]{0,95})", re.ASCII)
FOLDER = re.compile(
    r"folder://([A-Za-z0-9][A-Za-z0-9._-]{0,127}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,127}){0,3})", re.ASCII
)
BRANCH = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
MAX_TRIES = 10
FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 6 * 3600.0
MAX_ERROR_CHARS = 500


class Publish(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Says where a config or a request wants the model published once the job has completed."""

    to: Path
    """hf://OWNER/NAME, or folder://NAME within what the server publishes to."""
    secret: Name | None = None
    """The name of the stored secret that holds the Hub's token."""
    private: bool = True
    branch: Name = "main"


class PublicationState(StrEnum):
    DUE = "due"
    """It is tried now, or again later."""
    PUBLISHED = "published"
    FAILED = "failed"
    """Given up: somebody must ask for it again."""


TRANSITIONS = {
    (PublicationState.DUE, "done"): PublicationState.PUBLISHED,
    (PublicationState.DUE, "again"): PublicationState.DUE,
    (PublicationState.DUE, "give_up"): PublicationState.FAILED,
    (PublicationState.FAILED, "ask"): PublicationState.DUE,
    (PublicationState.PUBLISHED, "ask"): PublicationState.DUE,
}
"""Whatever is not here does not happen."""


class Publication(Struct, frozen=True, kw_only=True):
    job_id: str
    publish: Publish
    state: PublicationState
    created_at: float
    not_before: float
    tries: int = 0
    error: str | None = None
    """Why the last try failed."""
    url: str | None = None
    """Where it is, once it is published."""
    finished_at: float | None = None


def check_publish(publish: Publish, path: str) -> Publish:
    hub = HUB.fullmatch(publish.to)
    if not hub and not FOLDER.fullmatch(publish.to):
        raise Invalid(
            "publish.to must be hf://OWNER/NAME or folder://NAME.",
            path=f"{path}.to",
            next_step="Name a model repository on the Hugging Face Hub, or a folder under the server's "
            "--publish-url.",
        )
    if hub and not publish.secret:
        raise Invalid(
            "Publishing to the Hugging Face Hub needs a token: publish.secret names the stored secret "
            "that contains it.",
            path=f"{path}.secret",
            next_step="Store it with 'simpletuner secrets set NAME'.",
        )
    if not BRANCH.fullmatch(publish.branch):
        raise Invalid("publish.branch must be the name of a branch.", path=f"{path}.branch")
    return publish


def opened(job: Job, publish: Publish, now: float, before: Publication | None = None) -> Publication:
    """Returns a due publication, after the job has completed or somebody asks for it again."""
    if job.state is not JobState.COMPLETED:
        raise WrongJobState(
            f"The job is {job.state}; only a completed job's results can be published.", state=job.state
        )
    if before is not None:
        _next(before, "ask")
    return Publication(
        job_id=job.id, publish=publish, state=PublicationState.DUE, created_at=now, not_before=now
    )


def place_of(publish: Publish) -> str:
    """Returns what only one publication may change at a time: all of one owner's on the Hub, or one whole folder.

    Two at once would write the same file, and the Hub makes one repository of an owner at a time.
    """
    return "/".join(publish.to.split("/")[:3])


def is_folder(place: str) -> bool:
    return place.startswith("folder:")


def done(publication: Publication, url: str, now: float) -> Publication:
    return replace(
        publication,
        state=_next(publication, "done"),
        tries=publication.tries + 1,
        url=url,
        error=None,
        finished_at=now,
    )


def tried_in_vain(
    publication: Publication, error: str, now: float, *, hopeless: bool, wait_s: float = 0.0
) -> Publication:
    """Waits longer after each failure, and as long as the other side asks for; gives up if waiting cannot help."""
    tries = publication.tries + 1
    gives_up = hopeless or tries >= MAX_TRIES
    pause_s = min(LONGEST_WAIT_S, max(wait_s, FIRST_WAIT_S * 4.0 ** (tries - 1)))
    return replace(
        publication,
        state=_next(publication, "give_up" if gives_up else "again"),
        tries=tries,
        error=error[:MAX_ERROR_CHARS],
        not_before=now + pause_s,
        finished_at=now if gives_up else None,
    )


def waits_too_long(publication: Publication, now: float) -> bool:
    """Tells whether a try is put off for longer than ever happens: the clock was ahead, and was corrected since."""
    return publication.state is PublicationState.DUE and publication.not_before - now > LONGEST_WAIT_S


def files_to_publish(manifests: list[StoredManifest]) -> tuple[FileEntry, ...]:
    """Returns the results of the newest attempt that left any, without samples; else the newest checkpoint."""
    results = [one for one in manifests if one.kind == "artifact" and one.name != SAMPLES]
    if results:
        newest = max(one.epoch for one in results)
        files = {file.path: file for one in results if one.epoch == newest for file in one.files}
        return tuple(files[path] for path in sorted(files))
    checkpoint = newest_checkpoint(manifests)
    return checkpoint.files if checkpoint else ()


def _next(publication: Publication, input_: str) -> PublicationState:
    try:
        return TRANSITIONS[publication.state, input_]
    except KeyError:
        raise WrongJobState(
            f"The model is already being published: {publication.state}.", state=publication.state
        ) from None
