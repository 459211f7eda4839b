"""Prepares an attempt before its trainer starts: writes folder and config, and fetches data and checkpoint."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.data.data_cache import remove_links
from simpletuner_fleet.agent.data.datasets import Datasets, DataUnreachable, FetchProgress
from simpletuner_fleet.agent.data.downloads import ContentSource
from simpletuner_fleet.agent.data.kept_caches import DATA, KeptCaches
from simpletuner_fleet.agent.data.resume import CheckpointFetcher, read_resume
from simpletuner_fleet.agent.state_dir import AttemptDir, StateDir
from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.worker_errors import (
    CacheTooSmall,
    DataFailed,
    PathNotGranted,
    ResumeFailed,
    ShimUnavailable,
)
from simpletuner_fleet.core.workers.start_trouble import Blame
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.protocol.uploads import Resume
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits, habits_of
from simpletuner_fleet.trainers.contract import Launch, NodeSpan, Paths, TrainerError
from simpletuner_fleet.trainers.registry import Registry

log = logging.getLogger(__name__)

WANTED_LOOK_S = 0.2
HUB = "hub"
"""All that a job sees of its folder of downloads: what keeps the books of it stays the worker's."""
AFTER_ITS_DATA = Launch(argv=[], env={}, cwd="")
"""Stands for what is prepared once the data is in place."""


class Preparation:
    def __init__(
        self,
        state: StateDir,
        trainers: Registry,
        client: ContentSource,
        data: Datasets | None,
        clean: Callable[[Path], None] = lambda cache: None,
        must_see: Callable[[str, str, list[Path]], None] = lambda where, path, own: None,
    ) -> None:
        """`must_see` raises PathNotGranted for a path that jobs see nothing of, and that is none of the attempt's own."""
        self._must_see = must_see
        self._state, self._trainers, self._client, self._data = state, trainers, client, data
        self.caches = KeptCaches(state.path / "caches", clean=clean)
        self.downloads = KeptCaches(state.path / "downloads")
        """What jobs fetch from the Hugging Face Hub, for later jobs of the same owner."""
        self.spans: dict[str, NodeSpan] = {}
        """By attempt, where it meets its parts on other nodes."""
        self.launches: dict[Turn, asyncio.Task[Launch]] = {}
        """How each attempt that is not started yet is to be."""

    def begin(self, turn: Turn, launch: Coroutine[Any, Any, Launch]) -> None:
        self.launches[turn] = asyncio.create_task(launch)

    async def take(self, turn: Turn) -> Launch:
        return await self.launches.pop(turn)

    async def forget(self, turn: Turn) -> None:
        launch = self.launches.pop(turn, None)
        if launch:
            with contextlib.suppress(Exception):  # nobody waits for what it would have become
                await launch

    async def take_up(self, running: list[JobSubmit]) -> None:
        """Learns at the start which attempts run still; of all others nothing is needed any more."""
        attempt_ids = {offer.attempt_id for offer in running}
        await asyncio.to_thread(self.downloads.take_up, attempt_ids)
        for free in await asyncio.to_thread(self.caches.take_up, attempt_ids):
            await asyncio.to_thread(remove_links, free / DATA)
        if self._data is None:
            return
        for offer in running:
            cache = self.caches.place_of(offer.attempt_id)
            if cache:
                self._data.show_in(offer.attempt_id, cache / DATA)
        await self._data.take_up(running)

    async def release_data(self, attempt_id: str) -> None:
        """Gives back the data of an attempt that is over."""
        self.spans.pop(attempt_id, None)
        if self._data is None:
            return
        try:
            await self._data.release(attempt_id)
        except OSError as error:  # as the job laid out its cache, which is cleaned or begins anew next
            log.warning("the data of attempt %s could not be taken away: %s", attempt_id, error)

    def release_kept(self, attempt_id: str) -> None:
        """Gives back the caches and downloads of an attempt that is over. Blocks: call it in a thread."""
        for kept in (self.caches, self.downloads):
            try:
                kept.release(attempt_id)
            except OSError as error:
                log.warning("a folder of attempt %s could not be freed: %s", attempt_id, error)

    async def put_in_place(
        self,
        offer: JobSubmit,
        is_wanted: Callable[[], bool],
        tell: Callable[[FetchProgress], None] = lambda fetching: None,
    ) -> AttemptEnding | None:
        """Fetches the data and the checkpoint to go on from, if any.

        Returns None once they are there, else why it cannot start.
        May take as long as they have gigabytes; it ends when the attempt is not wanted any more.
        """
        if offer.resume is None and not offer.datasets:
            return None
        data = FetchProgress()
        fetching = asyncio.create_task(self._fetch(offer, data))
        try:
            while not fetching.done():
                await asyncio.wait({fetching}, timeout=WANTED_LOOK_S)
                if not is_wanted():
                    return AttemptEnding(reason=EndReason.STOPPED)
                tell(data)
            fetching.result()
        except DataUnreachable as error:
            return AttemptEnding(reason=EndReason.DATA_UNREACHABLE, error=error.detail)
        except ResumeFailed as error:
            return AttemptEnding(reason=EndReason.RESUME_FAILED, error=error.detail)
        except Exception as error:  # half an upgrade, anybody's plug-in: whatever it is, the attempt must end
            return AttemptEnding(
                reason=EndReason.START_FAILED, error=explain_start_failure(error), blame=blame_for(error)
            )
        finally:
            fetching.cancel()
        return None

    def make_folders(self, offer: JobSubmit, *, were_spare: bool) -> None:
        """Makes the attempt's folders, and gives it those that are kept between attempts. It blocks.

        Those that `were_spare` are there already.
        """
        if offer.missing_secrets:
            raise TrainerError(_explain_missing(offer.missing_secrets))
        if not were_spare:
            self._state.create_attempt(offer.attempt_id)
        self.take_caches(offer)

    def launch(self, offer: JobSubmit) -> Launch:
        """Writes the config; nothing runs yet. It blocks: call it in a thread."""
        return AFTER_ITS_DATA if offer.datasets else self._launch(offer)

    def take_downloads(self, offer: JobSubmit) -> Path | None:
        """Returns a folder for this attempt alone.

        Earlier jobs of its owner, and of nobody else, may have left models in it.
        """
        if not offer.owner:
            return None
        owner = hashlib.sha256(offer.owner.encode()).hexdigest()[:20]
        folder = self.downloads.take(owner, offer.attempt_id) / HUB
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def take_caches(self, offer: JobSubmit) -> None:
        """Gives the attempt a cache folder, and shows its data there under a path that stays.

        A trainer's own indices hold the paths of its pictures.

        Nobody is given what another owner's job has left, whatever they have in common: a trainer runs what it loads.
        """
        key = self.habits(offer).cache_key(offer)
        if key is None:
            return
        own_key = hashlib.sha256(f"{key} {offer.owner}".encode()).hexdigest()[:20]
        cache = self.caches.take(own_key, offer.attempt_id)
        if self._data:
            self._data.show_in(offer.attempt_id, cache / DATA)

    def _launch(self, offer: JobSubmit) -> Launch:
        trainer, span = self._trainers.get(offer.trainer), self.spans.get(offer.attempt_id)
        if offer.nodes > 1 and not habits_of(trainer).spans_nodes:
            raise TrainerError(f"the trainer '{offer.trainer}' cannot train over several nodes")
        paths = replace(self.paths(self._state.attempt(offer.attempt_id)), span=span)
        return trainer.launch(self.located(offer), paths)

    def located(self, offer: JobSubmit) -> JobSubmit:
        return self._data.located(offer) if self._data else offer

    async def _fetch(self, offer: JobSubmit, data: FetchProgress) -> None:
        turn = turn_of(offer)
        if offer.datasets:
            await asyncio.shield(self.launches[turn])
            if self._data is None:
                raise CacheTooSmall("the data has no place here: this worker keeps no data cache")
            await self._data.put_in_place(offer, data)
            self.launches[turn] = asyncio.create_task(asyncio.to_thread(self._launch, offer))
        if offer.resume is not None:
            await self._resume(offer)

    async def _resume(self, offer: JobSubmit) -> None:
        """Changes what was prepared: the trainer will go on from the checkpoint."""
        turn = turn_of(offer)
        launch = await asyncio.shield(self.launches[turn])
        resume = read_resume(offer.resume or {})
        attempt = self._state.attempt(offer.attempt_id)
        paths, habits = self.paths(attempt), self.habits(offer)
        nearby = await asyncio.to_thread(self._made_here, offer, resume)
        fetcher = CheckpointFetcher(
            self._client, offer.job_id, attempt.path / "resume" / resume.name, nearby=nearby
        )
        checkpoint = await fetcher.place(resume, habits.output_folder(paths))

        def point() -> Launch:
            return habits.place_resume(self.located(offer), paths, checkpoint, launch)

        self.launches[turn] = asyncio.create_task(asyncio.to_thread(point))

    def _made_here(self, offer: JobSubmit, resume: Resume) -> list[Path]:
        """Returns folders of earlier attempts of the job that may hold the checkpoint."""
        folders = []
        for attempt in self._state.attempts():
            order = attempt.load_order()
            if order and order.job_id == offer.job_id and order.attempt_id != offer.attempt_id:
                folder = self.habits(order).output_folder(self.paths(attempt)) / resume.name
                if folder.is_dir():
                    folders.append(folder)
        return folders

    def habits(self, offer: JobSubmit) -> CheckpointHabits:
        """Returns the habits of a trainer that may have been uninstalled since it ran."""
        try:
            return habits_of(self._trainers.get(offer.trainer))
        except TrainerError:
            return CheckpointHabits()

    def files_of(self, offer: JobSubmit) -> tuple[CheckpointHabits, Paths]:
        """Returns what is to be known of the files of an attempt, and where they are."""
        return self.habits(offer), self.paths(self._state.attempt(offer.attempt_id))

    def paths(self, attempt: AttemptDir) -> Paths:
        cache = self.caches.place_of(attempt.attempt_id)
        data = self._data.folder_of(attempt.attempt_id) if self._data else None
        own = [folder for folder in (attempt.job_dir, cache, data) if folder]
        return Paths(
            attempt_dir=attempt.job_dir,
            config_dir=attempt.config_dir,
            output_dir=attempt.output_dir,
            cache_dir=cache,
            kept_config=attempt.path / "written.json",
            must_see=lambda where, path: self._must_see(where, path, own),
        )


def _explain_missing(names: list[str]) -> str:
    return (
        f"the orchestrator cannot give the secret '{names[0]}': it was deleted, or its key is lost; "
        f"store it again with 'simpletuner secrets set {names[0]}' and retry the job"
    )


def blame_for(error: Exception) -> Blame:
    """Blames the job for a config that no trainer takes or missing data, which is the same anywhere, else this machine.

    What this worker's owner did not grant, or gives too little room for, another's may have. The worker is not blamed: it
    would be set aside for it.
    """
    if isinstance(error, PathNotGranted | CacheTooSmall):
        return Blame.ELSEWHERE
    return Blame.JOB if isinstance(error, TrainerError | DataFailed) else Blame.WORKER


def explain_start_failure(error: Exception) -> str:
    if isinstance(error, ShimUnavailable):
        return f"the worker could not start a process: {error.detail}"
    if isinstance(error, FleetError):
        return error.detail
    if isinstance(error, OSError):
        return f"the worker could not prepare the job: {error.strerror or error}"
    return f"the worker could not prepare the job: {type(error).__name__}: {error}"
