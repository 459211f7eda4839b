"""Simulates publishing: the real publisher, people who ask again, and a destination that fails.

The destination refuses, breaks off and loses answers. What is really stored there is noted where the product cannot see
it.
"""

from collections.abc import Coroutine, Generator
from random import Random
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.jobs.job import Job, JobState
from simpletuner_fleet.core.publishing import (
    LONGEST_WAIT_S,
    MAX_TRIES,
    Publication,
    PublicationState,
    Publish,
    files_to_publish,
)
from simpletuner_fleet.orchestrator import publishing
from simpletuner_fleet.orchestrator.publishing import LOOK_S
from simpletuner_fleet.sim.checks.checkers import Problem
from simpletuner_fleet.sim.network import Link
from simpletuner_fleet.sim.people import ADMIN
from simpletuner_fleet.sim.server.orchestrator import EVERY_ENTRY, Orchestrator
from simpletuner_fleet.sim.server.store import Changes
from simpletuner_fleet.sim.world import World, drive
from simpletuner_fleet.storage.publish.content import PublishFailed

Ask = tuple[str, float]
"""A job, and when it was asked that its model be published."""
LONGEST_WAIT_AT_REST_S = LONGEST_WAIT_S + 2_500.0
"""How long a model may still wait for its next try when the faults end, an hour and more by a clock that was set back."""
RECORDED = {
    PublicationState.PUBLISHED: EventType.PUBLISHED,
    PublicationState.FAILED: EventType.PUBLISH_FAILED,
}


class Pause(Struct, frozen=True):
    """Pauses a try to publish for so much virtual time."""

    seconds: float

    def __await__(self) -> Generator["Pause", None, None]:
        yield self


class PublishingPlace:
    """Simulates a destination to which models are published.

    It takes files one by one, as a folder does; all of it may fail as long as there are faults.
    """

    def __init__(self, world: World, chance: Random) -> None:
        self._world = world
        self._chance = chance
        self.content: dict[tuple[str, str], dict[str, str]] = {}
        """By place and job: the SHA-256 of each file."""
        self.brought: dict[Ask, set[frozenset[tuple[str, str]]]] = {}
        """What was once there as a whole, for each time it was asked for."""
        self.hopeless: set[Ask] = set()

    def _fails(self, kind: str, share: float) -> bool:
        fails = self._world.faulty and self._chance.random() < share
        if fails:
            self._world.fault(kind)
        return fails

    async def _passing_time(self) -> None:
        await Pause(self._chance.uniform(0.1, 2.0 if self._world.hurries else 20.0))

    async def take(self, publication: Publication, files: dict[str, str]) -> str:
        ask = (publication.job_id, publication.created_at)
        await self._passing_time()
        if self._fails("publication refused", 0.2):
            raise PublishFailed("status 503", wait_s=self._chance.choice((0.0, 60.0)))
        if self._fails("publication refused for good", 0.1):
            self.hopeless.add(ask)
            raise PublishFailed("status 403", hopeless=True)
        # What was there before stays until each file is replaced: a restored server may know of that alone.
        held = self.content.setdefault((publication.publish.to, publication.job_id), {})
        for path, sha256 in files.items():
            await self._passing_time()
            if self._fails("publication broken off", 0.1):
                raise PublishFailed("the connection was lost")
            held[path] = sha256
        self.brought.setdefault(ask, set()).add(frozenset(files.items()))
        if self._fails("publication's answer lost", 0.15):
            raise PublishFailed("no answer")
        return f"{publication.publish.to}/{publication.job_id}"


class Publishing:
    """Simulates how models are published, and checks that it is done right.

    It runs the publisher's rounds in the orchestrator's process, asks for what people want of it, and looks for
    problems in both.
    """

    def __init__(self, world: World, orchestrator: Orchestrator, link: Link) -> None:
        self.world = world
        self.orchestrator = orchestrator
        self.link = link
        self.chance = Random(f"publications of {world.seed}")
        """Of its own: what is published changes nothing else of a seed."""
        self.place = PublishingPlace(world, self.chance)
        self.completed: list[str] = []
        """Jobs, in the order in which the log says so."""
        self._wanted = 0

    def begin(self) -> None:
        """Begins to publish in a process that runs already, and in each that starts later."""
        self.orchestrator.on_start = self._start
        self._start(self.orchestrator.life)

    def restored(self) -> None:
        entries = self.orchestrator.store.view.audit_range(0, EVERY_ENTRY)
        self.completed = [one.target_id for one in entries if one.event_type == EventType.JOB_COMPLETED]

    # What people want

    def requested(self) -> Publish | None:
        if self.chance.random() > 0.3:
            return None
        self._wanted += 1
        return Publish(to=f"folder://models/{self._wanted}")

    def plan_asks(self, for_s: float) -> None:
        for _ in range(self.chance.randint(0, 4)):
            self.world.after(self.chance.uniform(for_s / 3, for_s), self._ask_again)

    def _ask_again(self) -> None:
        view = self.orchestrator.store.view
        rows = [row for job_id in self.completed if (row := view.publication(job_id))]
        over = [row for row in rows if row.state is not PublicationState.DUE]
        if not rows:
            return
        job_id = self.chance.choice(over or rows).job_id

        def answered(outcome: Any) -> None:
            self.world.counts["publication asked for again"] += isinstance(outcome, Publication)

        work = self.orchestrator.act(lambda fleet: publishing.ask(fleet, job_id, None, ADMIN))
        self.link.call(lambda reply: self.orchestrator.receive(work, reply, self.link), answered)

    # The publisher

    def _start(self, life: int) -> None:
        fleet = self.orchestrator.fleet
        if fleet is None:
            return
        outcome = self.orchestrator.work(lambda: drive(publishing.mend_waits(fleet)))
        if isinstance(outcome, StoreUnavailable):
            self.world.after(LOOK_S, lambda: self._start(life) if self.orchestrator.life == life else None)
        else:
            self._plan(life)

    def _plan(self, life: int) -> None:
        self.world.after(LOOK_S, lambda: self._round(life))

    def _round(self, life: int) -> None:
        fleet = self.orchestrator.fleet
        if fleet is None or self.orchestrator.life != life:
            return
        if self.orchestrator.stalled:
            self.world.after(1.0, lambda: self._round(life))
            return
        self._go_on(life, publishing.try_all_due(fleet, self._bring))

    async def _bring(self, publication: Publication) -> str:
        manifests = self.orchestrator.store.view.manifests_of_job(publication.job_id)
        files = {file.path: file.sha256 for file in files_to_publish(manifests)}
        self.world.counts["publication tried again"] += publication.tries > 0
        if not files:
            self.place.hopeless.add((publication.job_id, publication.created_at))
            raise PublishFailed("nothing is stored", hopeless=True)
        return await self.place.take(publication, files)

    def _go_on(self, life: int, round_: Coroutine[Pause, None, int]) -> None:
        """Runs the round to its next pause; it ends with the orchestrator's process."""
        if self.orchestrator.fleet is None or self.orchestrator.life != life:
            self.world.counts["orchestrator died while it published"] += 1
            round_.close()
            return
        if self.orchestrator.stalled:
            self.world.after(1.0, lambda: self._go_on(life, round_))
            return
        pause = self.orchestrator.work(lambda: _next_pause(round_))
        if isinstance(pause, Pause):
            self.world.after(pause.seconds, lambda: self._go_on(life, round_))
        else:
            round_.close()
            self._plan(life)

    # The questions

    def problems_of(self, changes: Changes) -> list[Problem]:
        """Returns the problems that it finds in a commit."""
        view = self.orchestrator.store.view
        problems: list[Problem] = []
        for job_id, jobs in changes.jobs.items():
            before, job = jobs[0], jobs[-1]
            ends_now = _is_completed(job) and not _is_completed(before)
            if ends_now and self._is_wanted(job_id) and view.publication(job_id) is None:
                problems.append(("P1", f"{job_id} completed, and nobody will publish it"))
        recorded = {(entry.target_id, entry.event_type) for entry in changes.audit}
        self.completed += [
            entry.target_id for entry in changes.audit if entry.event_type == EventType.JOB_COMPLETED
        ]
        for job_id, rows in changes.publications.items():
            problems += self._row_problems(job_id, rows[0], rows[-1], recorded)
        return problems

    def _row_problems(
        self,
        job_id: str,
        before: Publication | None,
        row: Publication | None,
        recorded: set[tuple[str, str]],
    ) -> list[Problem]:
        if row is None:
            return [("P1", f"the publication of {job_id} was deleted")]
        if before == row or row.state is PublicationState.DUE:
            return []
        self.world.counts[f"publication {row.state}"] += 1
        problems: list[Problem] = []
        if (job_id, RECORDED[row.state]) not in recorded:
            problems.append(("A1", f"{job_id} is {row.state} without an entry"))
        if row.state is PublicationState.PUBLISHED:
            problems += self._untrue(row)
        return problems

    def _untrue(self, row: Publication) -> list[Problem]:
        held = self.place.content.get((row.publish.to, row.job_id), {})
        asks = [(row.job_id, row.created_at)]
        if (
            self.orchestrator.restores
        ):  # what was published since the backup may have taken its place, whole as well
            asks = [ask for ask in self.place.brought if ask[0] == row.job_id]
        if not any(frozenset(held.items()) in self.place.brought.get(ask, ()) for ask in asks):
            return [("P2", f"{row.job_id} is said to be published; there is {held}")]
        return []

    def unrest(self) -> str | None:
        view = self.orchestrator.store.view
        due = [
            job_id
            for job_id in self.completed
            if (row := view.publication(job_id)) and row.state is PublicationState.DUE
        ]
        return f"{due[0]} is to be published" if due else None

    def problems_at_rest(self) -> list[Problem]:
        view = self.orchestrator.store.view
        problems: list[Problem] = []
        for job_id in self.completed:
            row = view.publication(job_id)
            if row is None:
                if self._is_wanted(job_id):
                    problems.append(("P1", f"{job_id} was to be published, and nobody knows of it"))
                continue
            given_up = row.state is PublicationState.FAILED
            ask = (job_id, row.created_at)
            if given_up and row.tries < MAX_TRIES and ask not in self.place.hopeless:
                problems.append(("P1", f"{job_id} was given up after {row.tries} tries: {row.error}"))
            if row.state is PublicationState.PUBLISHED:
                problems += self._untrue(row)
        for (job_id, _), contents in self.place.brought.items():
            if len(contents) > 1:
                problems.append(
                    ("P3", f"{job_id} was asked for once and published {len(contents)} different ways")
                )
        return problems

    def _is_wanted(self, job_id: str) -> bool:
        return publishing.wanted(self.orchestrator.store.view.job_bundle(job_id)) is not None


def _is_completed(job: Job | None) -> bool:
    return job is not None and job.state is JobState.COMPLETED


def _next_pause(round_: Coroutine[Pause, None, int]) -> Pause | None:
    try:
        return round_.send(None)
    except StopIteration:
        return None
