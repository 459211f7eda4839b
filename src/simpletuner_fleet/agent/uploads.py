"""The uploads of all attempts on this machine: begun with them, waited for by their reports, ended in a hurry."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from simpletuner_fleet.agent.bandwidth import Bandwidth
from simpletuner_fleet.agent.client import OrchestratorClient
from simpletuner_fleet.agent.inbox import Turn, turn_of
from simpletuner_fleet.agent.resume import read_resume
from simpletuner_fleet.agent.uploader import Uploader
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.contract import Paths

log = logging.getLogger(__name__)

SAVE_LOOK_S = 0.1
GOES_ON_ELSEWHERE = frozenset({"fenced", "agent_lost", "shim_lost"})


class Ended(Protocol):
    """However the trainer ended, `reason` as the runner names it."""

    @property
    def reason(self) -> str: ...


class Uploads:
    def __init__(self, client: OrchestratorClient, bandwidth: Bandwidth) -> None:
        self._client = client
        self._bandwidth = bandwidth
        self._uploaders: dict[Turn, tuple[Uploader, asyncio.Task[None]]] = {}
        self._elsewhere: set[Turn] = set()
        self.on_stored: Callable[[Turn, int], None] = lambda turn, step: None
        self.before_stored: Callable[[Turn], Awaitable[None]] | None = None
        self.on_over: Callable[[], None] = lambda: None

    def begin(
        self, offer: JobSubmit, paths: Paths, habits: CheckpointHabits, ending: Awaitable[Ended]
    ) -> asyncio.Task[None]:
        turn = turn_of(offer)
        resumed_from = read_resume(offer.resume).step if offer.resume else None
        uploader = Uploader(offer, paths, habits, self._client, self._bandwidth, resumed_from=resumed_from)
        uploader.on_stored = lambda step: self.on_stored(turn, step)
        before = self.before_stored
        if before:
            uploader.before_stored = lambda: before(turn)
        if resumed_from is not None:
            self.on_stored(turn, resumed_from)
        task = asyncio.create_task(self._run(turn, uploader, ending))
        task.add_done_callback(self._is_over)
        self._uploaders[turn] = (uploader, task)
        return task

    def goes_on_elsewhere(self, turn: Turn) -> None:
        """Its checkpoint matters, what else it leaves does not."""
        self._elsewhere.add(turn)

    def spoiled_from(self, turn: Turn, step: int) -> None:
        """Nobody is to go on from its checkpoints from this step on: they are not stored."""
        found = self._uploaders.get(turn)
        if found:
            found[0].spoiled_from = step

    def are_over(self, turn: Turn) -> bool:
        """Whether its report may go: whatever was to arrive before it has, or will not."""
        found = self._uploaders.get(turn)
        return found is None or found[0].over.is_set()

    def hurry(self) -> None:
        """There is no more time: what was not sent stays here."""
        for uploader, _ in self._uploaders.values():
            uploader.stop()
        self.on_over()

    def forget(self, turn: Turn) -> None:
        self._elsewhere.discard(turn)
        found = self._uploaders.pop(turn, None)
        if found:
            found[0].stop()
            found[1].cancel()

    async def checkpoint_now(self, turn: Turn, ending: Awaitable[Ended]) -> None:
        """Asks its trainer; returns when there is a new checkpoint, or none can be expected."""
        ended = asyncio.ensure_future(ending)
        try:
            found = self._uploaders.get(turn)
            if found:
                await _new_checkpoint(found[0].habits, found[0].paths, ended)
        finally:
            ended.cancel()

    async def _run(self, turn: Turn, uploader: Uploader, ending: Awaitable[Ended]) -> None:
        async with asyncio.TaskGroup() as both:
            uploading = both.create_task(uploader.run())
            elsewhere = (await ending).reason in GOES_ON_ELSEWHERE or turn in self._elsewhere
            uploader.trainer_ended(with_artifacts=not elsewhere)
            await uploading

    def _is_over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            log.error("uploading failed", exc_info=task.exception())
        self.on_over()


async def _new_checkpoint(habits: CheckpointHabits, paths: Paths, ended: asyncio.Future[Ended]) -> None:
    """A new one: that old ones are removed, as many trainers do before they save, is not it."""
    known = set(await asyncio.to_thread(habits.checkpoints, paths))
    if not await asyncio.to_thread(habits.request_checkpoint, paths):
        return
    while not ended.done() and known.issuperset(await asyncio.to_thread(habits.checkpoints, paths)):
        await asyncio.wait({ended}, timeout=SAVE_LOOK_S)
