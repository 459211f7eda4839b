"""Publishes models of completed jobs: opened with the job's end, and tried until done or given up."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import httpx2
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.configs.bundle import Bundle
from simpletuner_fleet.core.errors import Invalid, NotFound, NotLeader, UnreadableRow
from simpletuner_fleet.core.events import ORCHESTRATOR, Actor, Event, EventType
from simpletuner_fleet.core.jobs.job import Job, JobState
from simpletuner_fleet.core.publishing import (
    FOLDER,
    HUB,
    Publication,
    PublicationState,
    Publish,
    check_publish,
    done,
    files_to_publish,
    is_folder,
    opened,
    place_of,
    tried_in_vain,
    waits_too_long,
)
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.stored_secrets import secret_value, stored_secrets
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import View
from simpletuner_fleet.storage.publish.content import PublishedContent, PublishFailed
from simpletuner_fleet.storage.publish.hub import HUB_URL, Hub
from simpletuner_fleet.storage.publish.places import publish_to_place
from simpletuner_fleet.storage.storage import Storage

log = logging.getLogger(__name__)

LANES = 4
"""So many models are published at once, each to another place: a large one, or a frozen server, holds up few others."""
FOLDERS_AT_ONCE = LANES // 2
"""All folders lie in one place: where that does not answer, the other lanes publish on."""
IN_ONE_LOOK = 8
DUE_LOOKED_AT = 1_000
"""Among so many of those that are due, one is looked for whose place is free."""
LOOK_S = 10.0
END_OF_TIME, MANY = 1e18, 10_000
PUBLISHING = "publishing.job"
"""The row that says what is published next: written in the leader's term, or nothing is published."""
MENTIONED = b'"publish":{'


Bring = Callable[[Publication], Awaitable[str]]


class Places(Struct, frozen=True):
    """Names the places that this server may publish models to."""

    folder_url: str | None = None
    hub_url: str = HUB_URL


def open_with_end(transaction: Transaction, job: Job) -> None:
    """Opens the publication in the transaction in which the job completes, so that neither exists without the other."""
    if job.state is not JobState.COMPLETED:
        return
    publish = wanted(transaction.tx.job_bundle(job.id))
    if publish and not _is_there(transaction.tx, job.id):
        transaction.tx.put_publication(opened(job, publish, transaction.now))


def _is_there(view: View, job_id: str) -> bool:
    try:
        return view.publication(job_id) is not None
    except UnreadableRow:
        return True  # nobody knows whether it was published already; somebody may ask for it again


def readable_publication(view: View, job_id: str) -> Publication | None:
    """Returns it; None also where its row cannot be read, which is named among such rows."""
    try:
        return view.publication(job_id)
    except UnreadableRow:
        return None


def wanted(bundle: bytes | None) -> Publish | None:
    """Returns where the job's own config wants its model published."""
    if not bundle or MENTIONED not in bundle:  # nearly every job, and without reading all of it
        return None
    return msgspec.json.decode(bundle, type=Bundle).publish


async def ask(
    fleet: Fleet, job_id: str, publish: Publish | None, actor: Actor, owns_as: str = ""
) -> Publication:
    """Publishes a model at somebody's request: for the first time, elsewhere, or again after it was given up."""

    def step(transaction: Transaction) -> Publication:
        job = transaction.job(job_id)
        before = readable_publication(transaction.tx, job_id)
        asked = publish or (before.publish if before else None)
        if asked is None:
            raise Invalid("Say where to publish: the job itself names no destination.", path="$.to")
        check_publish(asked, "$")
        check_secret(transaction, asked, job.owner, actor.id, owns_as)
        fresh = opened(job, asked, transaction.now, before)
        transaction.tx.put_publication(fresh)
        transaction.record(_event(EventType.PUBLISH_ASKED, fresh, actor))
        return fresh

    return await fleet.act(step)


def check_secret(transaction: Transaction, publish: Publish, *whose: str) -> None:
    """Raises Invalid unless all of `whose`, the ids of those for whom it is published, may use the secret."""
    if publish.secret is None:
        return
    stored = stored_secrets(transaction.tx, [publish.secret]).get(publish.secret)
    if stored and not stored.is_for(*whose):
        raise Invalid(
            f"The secret '{publish.secret}' is reserved for other users' jobs.",
            path="$.secret",
            next_step="Ask its owner to allow you as well: 'simpletuner secrets set NAME --for YOU'.",
        )
    if stored is None:
        raise Invalid(
            f"There is no secret '{publish.secret}'.",
            path="$.secret",
            next_step=f"Store it with 'simpletuner secrets set {publish.secret}'.",
        )


async def publication_of(fleet: Fleet, job_id: str) -> Publication:
    stored = await fleet.read(lambda view: view.publication(job_id))
    if stored is None:
        raise NotFound(f"Job {job_id} has no model to publish.")
    return stored


async def mend_waits(fleet: Fleet) -> None:
    """Makes publications due now that the clock put off too far: at a start it may differ from before."""
    put_off = await fleet.read(lambda view: view.due_publications(END_OF_TIME, MANY))

    def step(transaction: Transaction) -> None:
        for seen in put_off:
            row = transaction.tx.publication(seen.job_id)
            if row and waits_too_long(row, transaction.now):
                transaction.tx.put_publication(replace(row, not_before=transaction.now))

    if any(waits_too_long(row, fleet.clock.now()) for row in put_off):
        await fleet.act(step)


async def publish_once(storage: Storage, places: Places, in_use: set[str] | None = None) -> int:
    return await try_all_due(storage.fleet, lambda due: _publish(storage, places, due), in_use)


async def try_all_due(fleet: Fleet, bring: Bring, in_use: set[str] | None = None) -> int:
    """Tries those that are due, one after the other and a few at most, and returns how many.

    `bring` returns where the model is then. `in_use` holds the places that others publish to just now.
    """
    in_use = set() if in_use is None else in_use
    tried = 0
    while tried < IN_ONE_LOOK:
        due = await fleet.read(lambda view: view.due_publications(fleet.clock.now(), DUE_LOOKED_AT))
        publication = next((one for one in due if _may_begin(place_of(one.publish), in_use)), None)
        if publication is None:
            break
        in_use.add(place_of(publication.publish))
        try:
            await _try(fleet, bring, publication)
        finally:
            in_use.discard(place_of(publication.publish))
        tried += 1
    return tried


def _may_begin(place: str, in_use: set[str]) -> bool:
    folders = sum(map(is_folder, in_use))
    return place not in in_use and not (is_folder(place) and folders >= FOLDERS_AT_ONCE)


async def _try(fleet: Fleet, bring: Bring, publication: Publication) -> None:
    """Tries it, unless it has changed since it was found: another lane may have published it meanwhile."""
    await fleet.announce(PUBLISHING, publication.job_id)
    if await fleet.read(lambda view: view.publication(publication.job_id)) != publication:
        return
    try:
        url = await bring(publication)
    except NotLeader:
        raise  # what has become of it is for whoever leads to find out
    except PublishFailed as error:
        await _record(fleet, publication, error=error)
    except Exception as error:  # whatever it is, it must not keep others from being published
        log.exception("job %s could not be published", publication.job_id)
        await _record(fleet, publication, error=PublishFailed(f"{type(error).__name__}"))
    else:
        await _record(fleet, publication, url=url)


async def _publish(storage: Storage, places: Places, publication: Publication) -> str:
    job_id, publish = publication.job_id, publication.publish
    manifests, token = await storage.fleet.read(
        lambda view: (
            view.manifests_of_job(job_id),
            secret_value(view, storage.fleet.vault, publish.secret) if publish.secret else None,
        )
    )
    content = PublishedContent(storage.blobs, files_to_publish(manifests), storage.fleet.insist_on_leading)
    if not content.files:
        raise PublishFailed("The job has stored nothing that could be published.", hopeless=True)
    hub = HUB.fullmatch(publish.to)
    if hub is None:
        folder = FOLDER.fullmatch(publish.to)
        return await publish_to_place(places.folder_url, folder[1] if folder else job_id, content)
    if token is None:
        raise PublishFailed(
            f"The secret '{publish.secret}' is unreadable: it was deleted, or its key is lost.",
            hopeless=True,
        )
    # Made only now, and beside the loop: to read whom this machine trusts takes a tenth of a second.
    async with await asyncio.to_thread(httpx2.AsyncClient, follow_redirects=False) as http:
        client = Hub(http, token, places.hub_url, storage.fleet.insist_on_leading)
        return await client.publish(publish, hub[1], hub[2], content, f"Job {job_id}")


async def _record(
    fleet: Fleet, tried: Publication, *, url: str | None = None, error: PublishFailed | None = None
) -> None:
    """Records the result of a try, unless somebody has asked for something else meanwhile."""

    def step(transaction: Transaction) -> None:
        now_is = transaction.tx.publication(tried.job_id)
        if now_is != tried:
            return
        if error:
            after = tried_in_vain(
                tried, error.detail, transaction.now, hopeless=error.hopeless, wait_s=error.wait_s
            )
        else:
            after = done(tried, url or "", transaction.now)
        transaction.tx.put_publication(after)
        kinds = {
            PublicationState.PUBLISHED: EventType.PUBLISHED,
            PublicationState.FAILED: EventType.PUBLISH_FAILED,
        }
        if after.state in kinds:
            transaction.record(_event(kinds[after.state], after, ORCHESTRATOR))
        job = transaction.known_job(tried.job_id)
        if job is not None:  # nobody watches one that is not there any more
            transaction.publish_job(job, publication=after.state)

    await fleet.act(step)


def _event(type_: EventType, publication: Publication, actor: Actor) -> Event:
    details = {"to": publication.publish.to, "tries": publication.tries}
    if publication.error:
        details["why"] = publication.error
    if publication.url:
        details["url"] = publication.url
    return Event(type=type_, actor=actor, target_type="job", target_id=publication.job_id, details=details)


class Publisher:
    """Calls `publish_once` for as long as the server runs, in several lanes."""

    def __init__(self, storage: Storage, places: Places) -> None:
        self._storage = storage
        self._places = places
        self._in_use: set[str] = set()
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._lanes: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._publish_for_ever())

    def wake(self) -> None:
        """Looks at once, since somebody has asked and waits."""
        self._woken.set()

    async def stop(self) -> None:
        for task in (self._task, *self._lanes):
            if task:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _publish_for_ever(self) -> None:
        """Begins at each look the lanes that are not busy; each ends once nothing is due whose place is free."""
        mended = False
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            self._woken.clear()
            try:
                if not mended:
                    await mend_waits(self._storage.fleet)
                    mended = True
            except Exception:
                log.exception("publishing failed; it is tried again")
                continue
            while len(self._lanes) < LANES:
                lane = asyncio.create_task(self._publish_all())
                self._lanes.add(lane)
                lane.add_done_callback(self._lanes.discard)

    async def _publish_all(self) -> None:
        try:
            while await publish_once(self._storage, self._places, self._in_use):
                pass
        except Exception:
            log.exception("publishing failed; it is tried again")
