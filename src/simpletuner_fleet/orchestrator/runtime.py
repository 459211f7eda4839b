"""Runs what goes on by itself while the orchestrator runs: the health check, and small tasks after an answer."""

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from simpletuner_fleet.core.errors import FleetError
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.orchestrator.dependents import tell_dependents_once
from simpletuner_fleet.orchestrator.organising.quota_watch import watch_quotas
from simpletuner_fleet.orchestrator.sweep import sweep_once
from simpletuner_fleet.orchestrator.workers.attendance import streams_still_missing

log = logging.getLogger(__name__)

SHORTEST_PAUSE_S = 0.01


class BackgroundTasks:
    """Runs tasks that nobody waits for. Each is held until it is done, and a failure is logged."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    async def finish(self, timeout_s: float) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
        for task in list(self._running):
            task.cancel()

    def _done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and task.exception():
            log.error("a background task failed", exc_info=task.exception())


async def note_start(fleet: Fleet, version: str) -> None:
    event = Event(
        type=EventType.SERVER_STARTED,
        actor=ORCHESTRATOR,
        target_type="server",
        target_id="",
        details={"version": version},
    )
    await fleet.act(lambda transaction: transaction.record(event))


class Runtime:
    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._sweeper: asyncio.Task[None] | None = None
        self._missing: asyncio.Task[None] | None = None
        self._teller: asyncio.Task[None] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._unfinished = asyncio.Event()
        self._sooner = asyncio.Event()
        self._wakes_at = 0.0
        """By the fleet's clock, as it was when the rest began."""

    async def start(self) -> None:
        await self._fleet.start()
        self._fleet.on_due = self._wake_for
        self._sweeper = asyncio.create_task(self._sweep_for_ever())
        self._missing = asyncio.create_task(self._note_missing_streams())
        self._fleet.on_unfinished = self._unfinished.set
        self._teller = asyncio.create_task(self._tell_dependents_for_ever())
        self._watcher = asyncio.create_task(self._watch_quotas_for_ever())

    def _wake_for(self, at: float) -> None:
        if at < self._wakes_at:
            self._sooner.set()

    async def stop(self) -> None:
        for task in (self._sweeper, self._missing, self._teller, self._watcher):
            if task:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _note_missing_streams(self) -> None:
        """Notes which workers have not come back after a restart. The health check decides whether they are lost."""
        started_at = self._fleet.clock.now()
        await asyncio.sleep(self._fleet.policy.reconnect_grace_s)
        try:
            await streams_still_missing(self._fleet, started_at)
        except FleetError:
            log.exception("who has not come back yet could not be noted")

    async def _tell_dependents_for_ever(self) -> None:
        """Looks at the start for those who were never told, and then whenever a transaction leaves something undone.

        Jobs that it has left to place are placed by the next one, whatever that is for.
        """
        while True:
            self._unfinished.clear()
            try:
                if not await tell_dependents_once(self._fleet):
                    await self._unfinished.wait()
            except Exception:
                interval_s = self._fleet.policy.sweep_interval_s
                log.exception(
                    "jobs could not be told that one they wait for has ended; again in %.1f s", interval_s
                )
                await asyncio.sleep(interval_s)

    async def _watch_quotas_for_ever(self) -> None:
        """Looks beside the health check: what is stored is counted among people's reports, which may take a while."""
        while True:
            try:
                await watch_quotas(self._fleet)
            except Exception:
                log.exception("the quotas could not be looked at; they are again")
            await asyncio.sleep(self._fleet.policy.sweep_interval_s)

    async def _sweep_for_ever(self) -> None:
        while True:
            interval_s = self._fleet.policy.sweep_interval_s
            try:
                await sweep_once(self._fleet)
                await self._rest(asyncio.get_running_loop().time() + interval_s)
            except Exception:
                log.exception("the health check failed; the next one is due in %.1f s", interval_s)
                await asyncio.sleep(interval_s)

    async def _rest(self, until: float) -> None:
        """Waits until the next regular check, or until a job becomes due before it, even one put off meanwhile."""
        loop = asyncio.get_running_loop()
        woken = True
        while woken:
            self._sooner.clear()
            pause_s = max(SHORTEST_PAUSE_S, until - loop.time())
            self._wakes_at = self._fleet.clock.now() + pause_s
            due = await self._fleet.read_now(lambda view: view.next_backoff_at())
            if due is not None:
                pause_s = min(pause_s, max(SHORTEST_PAUSE_S, due - self._fleet.clock.now()))
                self._wakes_at = min(self._wakes_at, due)
            try:
                await asyncio.wait_for(self._sooner.wait(), pause_s)
            except TimeoutError:
                woken = False
