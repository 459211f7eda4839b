"""Runs what is asked of providers beside the rounds: one that takes long delays neither a round nor another pool."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.errors import NotLeader
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.provisioning.offers import ProviderSnapshot
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest

log = logging.getLogger(__name__)

CALLS_AT_ONCE = 8
"""For each pool, and as many to end machines: what costs does not wait for what is being made."""
PATIENCE_S = 2.0
"""So long a round waits for its own calls; those that take longer go on beside the next ones."""
LOOK_PATIENCE_S = 10.0
"""So long a round waits for a provider's list, and only where that came as soon the last time."""
LONGEST_LOOK_S = 40.0
"""A look ends by itself before that, unless it is anybody's code that cannot be stopped."""
STOPPED_WITHIN_S = 5.0
NO_ANSWER = "no answer in time"


class _Look(Struct, frozen=True, eq=False):
    request: PoolRequest
    task: asyncio.Task[ProviderSnapshot | str]
    began_at: float


class LooksUnderWay:
    """Looks at the providers of all pools at once.

    A provider that is slow is not waited for again until it was quick: its answer counts in the round after it came.
    """

    def __init__(self, patience_s: float = LOOK_PATIENCE_S, longest_look_s: float = LONGEST_LOOK_S) -> None:
        self._patience_s = patience_s
        self._longest_look_s = longest_look_s
        self._looks: dict[str, _Look] = {}
        self._slow: set[str] = set()

    async def answers(
        self,
        pools: Sequence[MachinePool],
        look: Callable[[MachinePool], Coroutine[Any, Any, ProviderSnapshot | str]],
    ) -> dict[str, ProviderSnapshot | str]:
        """Returns by pool what its provider showed, or what kept it from being looked at.

        A pool whose look is not over, and may still be, is not in it.
        """
        requests = {pool.name: pool.request for pool in pools}
        now = asyncio.get_running_loop().time()
        for name, one in list(self._looks.items()):
            if requests.get(name) != one.request:
                one.task.cancel()
                del self._looks[name]
                self._slow.discard(name)
        self._slow &= requests.keys()
        for pool in pools:
            if pool.name not in self._looks:
                task = asyncio.create_task(look(pool))
                task.add_done_callback(partial(self._note_pace, pool.name, now))
                self._looks[pool.name] = _Look(pool.request, task, now)
        awaited = [one.task for name, one in self._looks.items() if name not in self._slow]
        if awaited:
            await asyncio.wait(awaited, timeout=self._patience_s)
        return {pool.name: answer for pool in pools if (answer := self._answer_of(pool.name)) is not None}

    def _answer_of(self, name: str) -> ProviderSnapshot | str | None:
        one = self._looks[name]
        if one.task.done():
            del self._looks[name]
            return one.task.result()
        self._slow.add(name)
        took_s = asyncio.get_running_loop().time() - one.began_at
        return NO_ANSWER if took_s >= self._longest_look_s else None

    def _note_pace(self, name: str, began_at: float, task: asyncio.Task[ProviderSnapshot | str]) -> None:
        if task.cancelled() or task.exception():
            return
        took_s = asyncio.get_running_loop().time() - began_at
        quick = task.result() != NO_ANSWER and took_s < self._patience_s
        (self._slow.discard if quick else self._slow.add)(name)

    async def stop(self, within_s: float = STOPPED_WITHIN_S) -> None:
        await _end([one.task for one in self._looks.values()], within_s)


class CallsUnderWay:
    """Makes the calls for machines, one for a machine at a time. A failure with one does not affect the others."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._begun: list[asyncio.Task[None]] = []
        self._places: defaultdict[tuple[str, bool], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(CALLS_AT_ONCE)
        )
        """By pool, and whether a machine is ended."""
        self._not_leader: NotLeader | None = None

    def begin(self, machine: Machine, call: Callable[[Machine], Coroutine[Any, Any, None]]) -> None:
        """Begins the call, unless an earlier one for the same machine is not over yet."""
        if machine.id in self._calls:
            return
        task = asyncio.create_task(self._make(machine, call))
        self._calls[machine.id] = task
        self._begun.append(task)
        task.add_done_callback(lambda _: self._calls.pop(machine.id, None))

    def machines_under_way(self) -> frozenset[str]:
        """Returns the ids of the machines whose calls are not over."""
        return frozenset(self._calls)

    async def settle(self) -> None:
        """Waits for the calls that were begun since the last time, but not for long.

        Raises NotLeader where a call has found that out.
        """
        begun, self._begun = self._begun, []
        if begun:
            await asyncio.wait(begun, timeout=self._patience_s)
        not_leader, self._not_leader = self._not_leader, None
        if not_leader is not None:
            raise not_leader

    async def stop(self) -> None:
        await _end(list(self._calls.values()), STOPPED_WITHIN_S)

    async def _make(self, machine: Machine, call: Callable[[Machine], Coroutine[Any, Any, None]]) -> None:
        try:
            async with self._places[machine.pool, machine.state is MachineState.DESTROYING]:
                await call(machine)
        except NotLeader as error:
            self._not_leader = error
        except Exception:
            log.exception("a machine could not be looked after; it is tried again")


async def _end(tasks: Sequence[asyncio.Task[Any]], within_s: float) -> None:
    """Ends the tasks; one that does not let itself be ended is not waited for."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=within_s)
