"""Runs the uploads of all attempts on this machine: they begin with an attempt, and its report waits for them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.data.resume import read_resume
from simpletuner_fleet.agent.ship.courier import SendersByAttempt
from simpletuner_fleet.agent.ship.uploader import Uploader
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.contract import Paths

SAVE_LOOK_S = 0.1
GOES_ON_ELSEWHERE = frozenset({EndReason.FENCED, EndReason.AGENT_LOST, EndReason.SHIM_LOST})


class HasEndReason(Protocol):
    """Describes any record of how a trainer ended."""

    @property
    def reason(self) -> EndReason: ...
    @property
    def exit_code(self) -> int | None: ...


Store = Callable[[Turn, int], None]
"""A checkpoint of this step is safely off this machine."""


class Uploads(SendersByAttempt[Uploader]):
    def __init__(
        self,
        client: OrchestratorClient,
        bandwidth: Bandwidth,
        on_over: Callable[[], None] = lambda: None,
        on_stored: Store = lambda turn, step: None,
        before_stored: Callable[[Turn], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__("uploading", on_over)
        self._client = client
        self._bandwidth = bandwidth
        self._on_stored, self._before_stored = on_stored, before_stored
        self._elsewhere: set[Turn] = set()
        self._results_wait_s: dict[Turn, float] = {}

    def upload(
        self, offer: JobSubmit, paths: Paths, habits: CheckpointHabits, ending: Awaitable[HasEndReason]
    ) -> asyncio.Task[None]:
        turn = turn_of(offer)
        resumed_from = read_resume(offer.resume).step if offer.resume else None
        uploader = Uploader(offer, paths, habits, self._client, self._bandwidth, resumed_from=resumed_from)
        uploader.on_stored = lambda step: self._on_stored(turn, step)
        before = self._before_stored
        if before:
            uploader.before_stored = lambda: before(turn)
        self._results_wait_s[turn] = offer.results_wait_s
        if resumed_from is not None:
            self._on_stored(turn, resumed_from)
        return self.begin(turn, uploader, ending, lambda ended: self._trainer_ended(turn, uploader, ended))

    def goes_on_elsewhere(self, turn: Turn) -> None:
        """Sends only the checkpoint of an attempt that goes on elsewhere: what else it leaves does not matter."""
        self._elsewhere.add(turn)

    def spoiled_from(self, turn: Turn, step: int) -> None:
        """Keeps checkpoints from this step on from being stored: nobody is to go on from them."""
        uploader = self.get(turn)
        if uploader:
            uploader.spoiled_from = step

    def left_something(self, turn: Turn) -> bool:
        uploader = self.get(turn)
        return uploader is not None and uploader.left_something

    def forget(self, turn: Turn) -> None:
        self._elsewhere.discard(turn)
        super().forget(turn)

    async def ask_for_checkpoint(self, turn: Turn) -> bool:
        """Returns whether its trainer was asked; waits for nothing."""
        uploader = self.get(turn)
        return uploader is not None and await asyncio.to_thread(
            uploader.habits.request_checkpoint, uploader.paths
        )

    async def ask_to_validate(self, turn: Turn) -> bool:
        uploader = self.get(turn)
        return uploader is not None and await asyncio.to_thread(
            uploader.habits.request_validation, uploader.paths
        )

    async def checkpoint_now(self, turn: Turn, ending: Awaitable[HasEndReason]) -> None:
        """Asks its trainer; returns when there is a new checkpoint, or none can be expected."""
        ended = asyncio.ensure_future(ending)
        try:
            uploader = self.get(turn)
            if uploader:
                await _new_checkpoint(uploader.habits, uploader.paths, ended)
        finally:
            ended.cancel()

    def _trainer_ended(self, turn: Turn, uploader: Uploader, ended: HasEndReason) -> None:
        elsewhere = ended.reason in GOES_ON_ELSEWHERE or turn in self._elsewhere
        well = ended.reason is EndReason.EXITED and ended.exit_code == 0
        patience_s = self._results_wait_s.pop(turn, None)
        uploader.trainer_ended(with_artifacts=not elsewhere, patience_s=patience_s if well else None)


async def _new_checkpoint(
    habits: CheckpointHabits, paths: Paths, ended: asyncio.Future[HasEndReason]
) -> None:
    """Asks for a new checkpoint, and waits until it is there.

    Many trainers remove old ones before they save: that the list has changed does not mean that there is a new one.
    """
    known = set(await asyncio.to_thread(habits.checkpoints, paths))
    if not await asyncio.to_thread(habits.request_checkpoint, paths):
        return
    while not ended.done() and known.issuperset(await asyncio.to_thread(habits.checkpoints, paths)):
        await asyncio.wait({ended}, timeout=SAVE_LOOK_S)
