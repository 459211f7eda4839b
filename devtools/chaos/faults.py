"""Everything that is done to the fleet, drawn from a seed: what, to whom, when, and for how long."""

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from devtools.chaos.fleet import BEHIND_PROXY, WORKERS, Fleet, Worker
from devtools.chaos.processes import parent_of, send

SHORT_S = (0.05, 0.6)
LONG_S = (1.8, 3.5)
"""Longer than the heartbeat timeout."""
BETWEEN_S = (0.1, 1.1)
FIND_VICTIM_FOR_S = 1.0
WAKING_S = 0.05
SURELY_LEASED_S = 0.8
"""A freeze up to here cannot outlast a lease; on a busy machine a short one may become longer than it was drawn."""


class Fault(NamedTuple):
    kind: str
    after_s: float
    worker: int
    hold_s: float
    """Until it is undone: continued, healed, started again."""
    pick: float
    """Which of several processes, as a share of them."""

    def told(self) -> str:
        where = "" if self.kind.startswith("server") or self.kind == "drop_all" else f" worker-{self.worker}"
        return f"{self.kind}{where} for {self.hold_s:.2f} s"


def draw_faults(seed: int, rounds: int) -> list[Fault]:
    rng = random.Random(seed)
    return [draw_fault(rng) for _ in range(rounds)]


def draw_fault(rng: random.Random) -> Fault:
    kind = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])[0]
    return Fault(
        kind=kind,
        after_s=rng.uniform(*BETWEEN_S),
        worker=rng.choice(BEHIND_PROXY) if kind == "cut_off" else rng.randrange(WORKERS),
        hold_s=rng.uniform(*(LONG_S if rng.random() < 0.4 else SHORT_S)),
        pick=rng.random(),
    )


class Mischief:
    """Does the faults. Each claims what it touches, so that a fault never undoes another one's work."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.done: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.killed: set[int] = set()
        """Trainers that died by our hand."""
        self._claims = {name: asyncio.Lock() for name in ("line", *(str(at) for at in range(WORKERS)))}
        self._undoing: list[asyncio.Task[None]] = []

    async def begin(self, fault: Fault) -> None:
        """Returns once the fault has struck; it is undone in the background."""
        _, strike = KINDS[fault.kind]
        struck: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._whole(fault, strike, struck))
        self._undoing.append(task)
        await asyncio.wait((task, struck), return_when=asyncio.FIRST_COMPLETED)
        self._complain()

    async def heal(self) -> None:
        """When everything is undone."""
        await asyncio.gather(*self._undoing)

    def abandon(self) -> None:
        for task in self._undoing:
            task.cancel()

    def _complain(self) -> None:
        """Raises what kept a fault from being undone."""
        for task in self._undoing:
            if task.done():
                task.result()

    async def _whole(self, fault: Fault, strike: "Strike", struck: "asyncio.Future[None]") -> None:
        names = sorted({*CLAIMS.get(fault.kind, ("worker",))})
        locks = [self._claims[str(fault.worker) if name == "worker" else name] for name in names]
        for lock in locks:
            await lock.acquire()
        try:
            undo = await strike(self, fault)
            (self.missed if undo is None else self.done)[fault.kind] += 1
            struck.set_result(None)
            if undo is not None and undo is not nothing:
                await asyncio.sleep(fault.hold_s)
                await undo()
        finally:
            for lock in locks:
                lock.release()

    def worker(self, fault: Fault) -> Worker:
        return self.fleet.workers[fault.worker]

    async def victim(self, fault: Fault, look: Callable[[], list[int]]) -> int | None:
        """One of those that live now; waits a moment for the first."""
        for _ in range(int(FIND_VICTIM_FOR_S / 0.02)):
            found = sorted(look())
            if found:
                return found[int(fault.pick * len(found))]
            await asyncio.sleep(0.02)
        return None


Undo = Callable[[], Awaitable[None]]
Strike = Callable[[Mischief, Fault], Awaitable[Undo | None]]


async def nothing() -> None:
    """A dead trainer is not brought back."""


async def agent_kill(mischief: Mischief, fault: Fault) -> Undo:
    worker = mischief.worker(fault)
    worker.down_on_purpose = True
    worker.agent.kill()
    return lambda: start_again(worker)


async def start_again(worker: Worker) -> None:
    worker.agent.start()
    worker.down_on_purpose = False


async def agent_stop(mischief: Mischief, fault: Fault) -> Undo:
    agent = mischief.worker(fault).agent
    agent.signal(signal.SIGSTOP)

    async def undo() -> None:
        agent.signal(signal.SIGCONT)

    return undo


async def agent_restart(mischief: Mischief, fault: Fault) -> Undo:
    """Asked to go, as a service manager does, and started again."""
    worker = mischief.worker(fault)
    worker.down_on_purpose = True
    worker.agent.signal(signal.SIGTERM)
    for _ in range(600):
        if not worker.agent.alive:
            break
        await asyncio.sleep(0.05)
    assert not worker.agent.alive, f"{worker.name} did not end within 30 s of SIGTERM"
    return lambda: start_again(worker)


async def trainer_kill(mischief: Mischief, fault: Fault) -> Undo | None:
    pid = await mischief.victim(fault, mischief.worker(fault).trainers)
    if pid is None:
        return None
    mischief.killed.add(pid)
    send(pid, signal.SIGKILL)
    return nothing


async def shim_kill(mischief: Mischief, fault: Fault) -> Undo | None:
    """Its trainer dies with it: the kernel sees to that."""
    worker = mischief.worker(fault)
    pid = await mischief.victim(fault, worker.shims)
    if pid is None:
        return None
    mischief.killed |= {trainer for trainer in worker.tree() if parent_of(trainer) == pid}
    send(pid, signal.SIGKILL)
    return nothing


async def trainer_stop(mischief: Mischief, fault: Fault) -> Undo | None:
    return await stop_one(mischief, fault, mischief.worker(fault).trainers)


async def shim_stop(mischief: Mischief, fault: Fault) -> Undo | None:
    return await stop_one(mischief, fault, mischief.worker(fault).shims)


async def stop_one(mischief: Mischief, fault: Fault, look: Callable[[], list[int]]) -> Undo | None:
    pid = await mischief.victim(fault, look)
    if pid is None:
        return None
    send(pid, signal.SIGSTOP)

    async def undo() -> None:
        send(pid, signal.SIGCONT)

    return undo


async def machine_death(mischief: Mischief, fault: Fault) -> Undo:
    worker = mischief.worker(fault)
    worker.down_on_purpose = True
    worker.die()
    return lambda: start_again(worker)


async def machine_freeze(mischief: Mischief, fault: Fault) -> Undo:
    """Everything on it stands still, as in a suspended virtual machine.

    On waking, the guardian is first. After a freeze beyond the lease it holds the trainers back by SIGSTOP itself, so they
    are left to it.
    """
    worker = mischief.worker(fault)
    frozen_at = time.monotonic()
    worker.agent.signal(signal.SIGSTOP)
    shims, tree = worker.shims(), worker.tree()
    for pid in (*tree, *shims):
        send(pid, signal.SIGSTOP)
    late = [pid for pid in worker.tree() if pid not in tree]
    for pid in late:
        send(pid, signal.SIGSTOP)

    async def undo() -> None:
        frozen_s = time.monotonic() - frozen_at
        within_lease = frozen_s < SURELY_LEASED_S
        if not within_lease:
            await asyncio.sleep(LONG_S[0] - frozen_s)
        for pid in shims:
            send(pid, signal.SIGCONT)
        await asyncio.sleep(WAKING_S)
        if within_lease:
            for pid in (*tree, *late):
                send(pid, signal.SIGCONT)
        worker.agent.signal(signal.SIGCONT)

    return undo


async def server_kill(mischief: Mischief, fault: Fault) -> Undo:
    mischief.fleet.server.kill()
    return mischief.fleet.start_server


async def server_stop(mischief: Mischief, fault: Fault) -> Undo:
    server = mischief.fleet.server
    server.signal(signal.SIGSTOP)

    async def undo() -> None:
        server.signal(signal.SIGCONT)

    return undo


async def server_restart(mischief: Mischief, fault: Fault) -> Undo:
    server = mischief.fleet.server
    server.signal(signal.SIGTERM)
    for _ in range(400):
        if not server.alive:
            break
        await asyncio.sleep(0.05)
    assert not server.alive, "the server did not end within 20 s of SIGTERM"
    return mischief.fleet.start_server


async def drop_all(mischief: Mischief, fault: Fault) -> Undo:
    for worker in mischief.fleet.workers:
        if worker.proxy:
            worker.proxy.drop()
    return nothing


async def cut_off(mischief: Mischief, fault: Fault) -> Undo:
    proxy = mischief.worker(fault).proxy
    assert proxy is not None
    proxy.cut()

    async def undo() -> None:
        proxy.heal()
        proxy.drop()

    return undo


KINDS: dict[str, tuple[float, Strike]] = {
    "agent_kill": (14, agent_kill),
    "agent_stop": (12, agent_stop),
    "agent_restart": (4, agent_restart),
    "trainer_kill": (8, trainer_kill),
    "trainer_stop": (8, trainer_stop),
    "shim_kill": (10, shim_kill),
    "shim_stop": (8, shim_stop),
    "machine_death": (10, machine_death),
    "machine_freeze": (10, machine_freeze),
    "server_kill": (14, server_kill),
    "server_stop": (8, server_stop),
    "server_restart": (3, server_restart),
    "drop_all": (8, drop_all),
    "cut_off": (10, cut_off),
}
"""How often each is drawn, and what does it."""

CLAIMS = {
    "server_kill": ("line",),
    "server_stop": ("line",),
    "server_restart": ("line",),
    "drop_all": ("line",),
    # A SIGCONT of ours must not wake what a guardian holds back, and a frozen guardian holds nothing back: while one of
    # these lasts, every worker keeps its line to the orchestrator.
    "trainer_stop": ("line", "worker"),
    "shim_stop": ("line", "worker"),
}
"""What a fault needs for itself; its worker alone, if nothing is said."""
