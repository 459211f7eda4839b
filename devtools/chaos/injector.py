"""Injects faults into the fleet and undoes them again; what each fault does is in devtools/chaos/faults.py."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from devtools.chaos.fleet import WORKERS, ChaosFleet, Worker

FIND_VICTIM_FOR_S = 1.0
LOOK_EVERY_S = 0.1
"""Each look goes through all processes of the machine."""
NETWORK, WORKER = "network", "worker"


class Fault(NamedTuple):
    kind: str
    after_s: float
    worker: int
    hold_s: float
    """Until it is undone: continued, healed, started again."""
    pick: float
    """Which of several processes, as a share of them."""

    def text(self) -> str:
        where = "" if self.kind.startswith("server") or self.kind == "drop_all" else f" worker-{self.worker}"
        return f"{self.kind}{where} for {self.hold_s:.2f} s"


Undo = Callable[[], Awaitable[None]]
Strike = Callable[["FaultInjector", Fault], Awaitable[Undo | None]]
"""Does a fault and returns what undoes it, or None if there was no victim."""


class FaultKind(NamedTuple):
    weight: float
    """How often it is drawn, compared with the others."""
    strike: Strike
    claims: tuple[str, ...] = (WORKER,)
    """What it needs for itself while it lasts: its worker, the network, or both."""


async def undo_nothing() -> None:
    """A dead trainer is not brought back."""


class FaultInjector:
    """Does the faults. Each claims what it touches, so that a fault never undoes another one's work."""

    def __init__(self, fleet: ChaosFleet, kinds: Mapping[str, FaultKind]) -> None:
        self.fleet = fleet
        self.counts: Counter[str] = Counter()
        self.without_victim: Counter[str] = Counter()
        self.killed_pids: set[int] = set()
        """Trainers that died by our hand."""
        self.killed_attempts: set[str] = set()
        """Theirs, and those whose first guardian did: on a busy machine a trainer dies before it has written a line."""
        self._kinds = kinds
        self._claims = {
            name: asyncio.Lock() for name in (NETWORK, *(str(number) for number in range(WORKERS)))
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._healed_at = -math.inf

    async def begin(self, fault: Fault) -> None:
        """Returns once the fault has struck; it is undone in the background."""
        has_struck: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._strike_and_undo(fault, has_struck))
        self._tasks.append(task)
        await asyncio.wait((task, has_struck), return_when=asyncio.FIRST_COMPLETED)
        self._raise_what_failed()

    async def wait_until_all_undone(self) -> None:
        await asyncio.gather(*self._tasks)

    @property
    def breaks_the_server(self) -> bool:
        """Whether a fault of the server or of everybody's network lasts, or is being undone."""
        return self._claims[NETWORK].locked()

    def broke_the_server_within(self, seconds: float) -> bool:
        """Whether one did so lately: agents call again only after a pause, and the lease may be gone meanwhile."""
        return self.breaks_the_server or time.monotonic() - self._healed_at < seconds

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _raise_what_failed(self) -> None:
        """Raises what kept a fault from being undone."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _strike_and_undo(self, fault: Fault, has_struck: "asyncio.Future[None]") -> None:
        kind = self._kinds[fault.kind]
        # Always in the same order, so that two faults never wait for each other.
        locks = [self._claims[str(fault.worker) if name == WORKER else name] for name in sorted(kind.claims)]
        for lock in locks:
            await lock.acquire()
        try:
            undo = await kind.strike(self, fault)
            self._note(fault, "found no victim" if undo is None else "began")
            (self.without_victim if undo is None else self.counts)[fault.kind] += 1
            has_struck.set_result(None)
            if undo is not None and undo is not undo_nothing:
                await asyncio.sleep(fault.hold_s)
                await undo()
                self._note(fault, "undone")
        finally:
            if NETWORK in kind.claims:
                self._healed_at = time.monotonic()
            for lock in locks:
                lock.release()

    def _note(self, fault: Fault, what: str) -> None:
        """Keeps the course of the spell beside the programs' logs, on the clock of the trainers' journal."""
        with (self.fleet.folder / "faults.log").open("a") as file:
            file.write(f"{time.clock_gettime(time.CLOCK_BOOTTIME):.3f} {what}: {fault.text()}\n")

    def worker(self, fault: Fault) -> Worker:
        return self.fleet.workers[fault.worker]

    async def victim(self, fault: Fault, find_pids: Callable[[], list[int]]) -> int | None:
        """Picks one of those that live now; waits a moment for the first."""
        for _ in range(int(FIND_VICTIM_FOR_S / LOOK_EVERY_S)):
            pids = sorted(find_pids())
            if pids:
                return pids[int(fault.pick * len(pids))]
            await asyncio.sleep(LOOK_EVERY_S)
        return None
