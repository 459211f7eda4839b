"""Prepares attempts up to their last step while their acceptance is on its way, and starts them when it is answered.

Nothing of a job runs before `start`: its folder, its config and its wall are made, and the process that will be its
trainer waits for the command to go. Where the job is not ours after all, all of that is removed again.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.attempts.preparation import Preparation
from simpletuner_fleet.agent.data.datasets import Datasets
from simpletuner_fleet.agent.guard.runner import HeldTrainer, Runner, RunningTrainer
from simpletuner_fleet.agent.guard.shim_client import Order, ReadyWall, Wall
from simpletuner_fleet.agent.guard.shim_starts import ShimProcess
from simpletuner_fleet.agent.isolation.named_paths import refuse_unseen
from simpletuner_fleet.agent.isolation.walls import Walls
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.trainers.contract import Launch
from simpletuner_fleet.trainers.job_files import hand_over


class Starts:
    def __init__(
        self,
        state: StateDir,
        runner: Runner,
        preparation: Preparation,
        walls: Walls,
        data: Datasets | None,
        make_order: Callable[[JobSubmit, Launch, Wall | None], Order],
    ) -> None:
        self._state, self._runner, self._preparation = state, runner, preparation
        self._walls, self._data, self._make_order = walls, data, make_order
        self._shims: dict[Turn, ShimProcess] = {}
        """Of those that do not run yet."""
        self._ready: dict[Turn, ReadyWall] = {}
        """The walls that stood before their attempts were known, whose folders became theirs."""
        self._held: dict[Turn, asyncio.Task[HeldTrainer]] = {}

    def prepare(self, offer: JobSubmit) -> None:
        turn = turn_of(offer)
        if offer.resume is not None or offer.datasets:
            self._preparation.begin(turn, self._move_in_early(offer))
        else:
            self._held[turn] = asyncio.create_task(self._hold_at_once(offer))

    async def hold(self, offer: JobSubmit) -> None:
        """Returns when its last step is the next, for one whose data is in place. Raises as `start` does."""
        turn = turn_of(offer)
        if turn not in self._held:
            self._held[turn] = asyncio.create_task(self._hold_with_data(offer))
        await asyncio.shield(self._held[turn])

    async def start(self, offer: JobSubmit, lease_s: float, leased_at: float) -> RunningTrainer:
        """Raises whatever kept it from being prepared; then `forget` is to follow."""
        turn = turn_of(offer)
        held = await (self._held.pop(turn) if turn in self._held else self._hold_with_data(offer))
        running = await self._runner.go(held, lease_s, leased_at)
        del self._shims[turn]
        self._ready.pop(turn, None)
        return running

    async def forget(self, turn: Turn) -> None:
        """Discards what was prepared and not started. It may be called for any turn."""
        held = self._held.pop(turn, None)
        if held:
            with suppress(Exception):  # nobody waits for what it would have become
                await held
        await self._preparation.forget(turn)
        self._ready.pop(turn, None)
        shim = self._shims.pop(turn, None)
        if shim:
            await self._runner.dismiss(shim)
            self._runner.warm_up()

    async def _hold_at_once(self, offer: JobSubmit) -> HeldTrainer:
        """Prepares an attempt that needs no data, as fast as possible, because somebody waits for it.

        Whether the job may have the paths it names is checked while its wall is being closed.
        """
        turn = turn_of(offer)
        shim = self._shims[turn] = await self._runner.take()

        def prepare() -> tuple[Launch, Order, bool]:
            self._make_folders(offer, shim)
            launch = self._preparation.launch(offer)
            # What is shown in its cache must be there before the cache becomes its user's.
            is_shown = self._preparation.caches.place_of(offer.attempt_id) is not None
            if is_shown and not self._look_around(offer, launch):
                self._ready.pop(turn, None)
            return launch, self._walled_order(offer, launch), is_shown

        launch, order, is_shown = await asyncio.to_thread(prepare)
        shim = await self._fitting_shim(turn)

        def look_around() -> bool:
            self._state.attempt(offer.attempt_id).save_order(offer)
            return is_shown or self._look_around(offer, launch)

        held, fits = await asyncio.gather(self._runner.hold(shim, order), asyncio.to_thread(look_around))
        if fits:
            return held
        del self._ready[turn]
        order = await asyncio.to_thread(self._walled_order, offer, launch)
        return await self._runner.hold(await self._fitting_shim(turn), order)

    async def _move_in_early(self, offer: JobSubmit) -> Launch:
        """Prepares the folder before data or a checkpoint is fetched, which may take hours: others start meanwhile."""
        shim = self._shims[turn_of(offer)] = await self._runner.take()
        self._runner.warm_up()

        def move_in() -> Launch:
            self._make_folders(offer, shim)
            launch = self._preparation.launch(offer)
            self._state.attempt(offer.attempt_id).save_order(offer)
            return launch

        return await asyncio.to_thread(move_in)

    async def _hold_with_data(self, offer: JobSubmit) -> HeldTrainer:
        turn = turn_of(offer)
        launch = await self._preparation.take(turn)

        def prepare() -> Order:
            if not self._look_around(offer, launch):
                del self._ready[turn]
            return self._walled_order(offer, launch)

        order = await asyncio.to_thread(prepare)
        return await self._runner.hold(await self._fitting_shim(turn), order)

    async def _fitting_shim(self, turn: Turn) -> ShimProcess:
        """Returns a shim for this attempt. One that has built another wall is replaced: a shim builds one wall only."""
        shim = self._shims[turn]
        if shim.ready and turn not in self._ready:
            await self._runner.dismiss(shim)
            shim = self._shims[turn] = await self._runner.take_bare()
        return shim

    # These block: they are called in a thread.

    def _make_folders(self, offer: JobSubmit, shim: ShimProcess) -> None:
        """Makes the folder of the spare's wall the attempt's, unless the attempt has one."""
        turn, ready = turn_of(offer), shim.ready
        if ready and self._walls.move_in(ready, self._state.attempt(offer.attempt_id)):
            self._ready[turn] = ready
        self._preparation.make_folders(offer, were_spare=turn in self._ready)

    def _look_around(self, offer: JobSubmit, launch: Launch) -> bool:
        """Returns False if the machine has changed since the attempt's wall was built. Raises PathNotGranted.

        Data that the trainer wants to write beside, and may not, is shown where it may.
        """
        access = self._walls.path_access()
        if access is None:
            return True
        attempt = self._state.attempt(offer.attempt_id)
        data = self._data.folder_of(offer.attempt_id) if self._data and offer.datasets else None
        cache = self._preparation.caches.place_of(offer.attempt_id)
        own = [path for path in (attempt.job_dir, data, cache) if path]
        refuse_unseen(self._preparation.located(offer), launch, access, own, self._walls.home)
        self._preparation.habits(offer).show_data(self._preparation.paths(attempt), access.may_write)
        ready = self._ready.get(turn_of(offer))
        return ready is None or self._walls.is_up_to_date(ready)

    def _walled_order(self, offer: JobSubmit, launch: Launch) -> Order:
        attempt = self._state.attempt(offer.attempt_id)
        data = self._data.folder_of(offer.attempt_id) if self._data and offer.datasets else None
        cache = self._preparation.caches.place_of(offer.attempt_id)
        chosen = [*offer.env, *(offer.secrets or {})]
        downloads = self._preparation.take_downloads(offer) if self._walls.kind else None
        ready = self._ready.get(turn_of(offer))
        launch, wall = self._walls.raise_around(attempt, data, launch, chosen, cache, downloads, ready)
        output = self._preparation.habits(offer).output_folder(self._preparation.paths(attempt))
        if (
            wall
            and wall.uid is not None
            and wall.gid is not None
            and not output.is_relative_to(attempt.job_dir)
        ):
            output.mkdir(parents=True, exist_ok=True)
            hand_over(output, wall.uid, wall.gid)
        return self._make_order(offer, launch, wall)
