"""Everything that is done to the fleet, drawn from a seed: what, to whom, when, and for how long."""

import asyncio
import random
import signal
import time
from collections.abc import Callable, Collection, Mapping

from devtools.chaos.deeper.kinds import CELL_KINDS, DEEPER_KINDS
from devtools.chaos.fleet import BEHIND_PROXY, IN_CELL, WORKERS, Worker
from devtools.chaos.injector import NETWORK, WORKER, Fault, FaultInjector, FaultKind, Undo, undo_nothing
from devtools.chaos.line_faults import LINE_KINDS
from devtools.chaos.processes import attempt_of, attempt_run_by, is_guarded, send

SHORT_S = (0.05, 0.6)
LONG_S = (1.8, 3.5)
"""Longer than the heartbeat timeout."""
BETWEEN_S = (0.1, 1.1)
WAKING_S = 0.05
SURELY_LEASED_S = 0.8
CALLED_AGAIN_S = 5.0
"""Within so long after a break every agent has called again, and its guardians know."""
"""A freeze up to here cannot outlast a lease; on a busy machine a short one may become longer than it was drawn."""


async def agent_kill(injector: FaultInjector, fault: Fault) -> Undo:
    worker = injector.worker(fault)
    worker.down_on_purpose = True
    worker.agent.kill()
    return lambda: start_again(worker)


async def start_again(worker: Worker) -> None:
    worker.agent.start()
    worker.down_on_purpose = False


async def agent_stop(injector: FaultInjector, fault: Fault) -> Undo:
    agent = injector.worker(fault).agent
    agent.signal(signal.SIGSTOP)

    async def undo() -> None:
        agent.signal(signal.SIGCONT)

    return undo


async def agent_restart(injector: FaultInjector, fault: Fault) -> Undo:
    """Asked to go, as a service manager does, and started again."""
    worker = injector.worker(fault)
    worker.down_on_purpose = True
    worker.agent.signal(signal.SIGTERM)
    for _ in range(600):
        if not worker.agent.alive:
            break
        await asyncio.sleep(0.05)
    assert not worker.agent.alive, f"{worker.name} did not end within 30 s of SIGTERM"
    return lambda: start_again(worker)


async def trainer_kill(injector: FaultInjector, fault: Fault) -> Undo | None:
    pid = await injector.victim(fault, injector.worker(fault).trainers)
    if pid is None:
        return None
    injector.killed_pids.add(pid)
    injector.killed_attempts.add(attempt_run_by(pid))
    send(pid, signal.SIGKILL)
    return undo_nothing


async def shim_kill(injector: FaultInjector, fault: Fault) -> Undo | None:
    """Its trainer dies with it: the kernel sees to that."""
    worker = injector.worker(fault)
    pid = await injector.victim(fault, worker.shims)
    if pid is None:
        return None
    injector.killed_pids |= {trainer for trainer in worker.tree() if is_guarded(trainer, {pid})}
    injector.killed_attempts.add(attempt_of(pid))
    send(pid, signal.SIGKILL)
    return undo_nothing


async def trainer_stop(injector: FaultInjector, fault: Fault) -> Undo | None:
    return await stop_one(injector, fault, injector.worker(fault).trainers)


async def shim_stop(injector: FaultInjector, fault: Fault) -> Undo | None:
    return await stop_one(injector, fault, injector.worker(fault).shims)


async def stop_one(injector: FaultInjector, fault: Fault, find_pids: Callable[[], list[int]]) -> Undo | None:
    pid = await injector.victim(fault, find_pids)
    if pid is None:
        return None
    send(pid, signal.SIGSTOP)

    async def undo() -> None:
        send(pid, signal.SIGCONT)

    return undo


async def machine_death(injector: FaultInjector, fault: Fault) -> Undo:
    worker = injector.worker(fault)
    worker.down_on_purpose = True
    worker.die()
    return lambda: start_again(worker)


async def machine_freeze(injector: FaultInjector, fault: Fault) -> Undo:
    """Everything on it stands still, as in a suspended virtual machine.

    On waking, the guardian is first. Where the lease has run out it holds the trainers back by SIGSTOP itself, so they
    are left to it; and where that is possible and not certain, the freeze lasts until it is.
    """
    worker = injector.worker(fault)
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
        within_lease = frozen_s < SURELY_LEASED_S and not injector.broke_the_server_within(
            frozen_s + CALLED_AGAIN_S
        )
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


async def server_kill(injector: FaultInjector, fault: Fault) -> Undo:
    injector.fleet.server.kill()
    return injector.fleet.start_server


async def server_stop(injector: FaultInjector, fault: Fault) -> Undo:
    server = injector.fleet.server
    server.signal(signal.SIGSTOP)

    async def undo() -> None:
        server.signal(signal.SIGCONT)

    return undo


async def server_restart(injector: FaultInjector, fault: Fault) -> Undo:
    server = injector.fleet.server
    server.signal(signal.SIGTERM)
    for _ in range(400):
        if not server.alive:
            break
        await asyncio.sleep(0.05)
    assert not server.alive, "the server did not end within 20 s of SIGTERM"
    return injector.fleet.start_server


async def drop_all(injector: FaultInjector, fault: Fault) -> Undo:
    for worker in injector.fleet.workers:
        if worker.proxy:
            worker.proxy.drop()
    return undo_nothing


async def cut_off(injector: FaultInjector, fault: Fault) -> Undo:
    proxy = injector.worker(fault).proxy
    assert proxy is not None
    proxy.cut()

    async def undo() -> None:
        proxy.heal()
        proxy.drop()

    return undo


async def agent_and_shim_kill(injector: FaultInjector, fault: Fault) -> Undo:
    """Both guardians that the product names are gone at once; the machine and the trainer's second one live on."""
    worker = injector.worker(fault)
    worker.down_on_purpose = True
    shims = worker.shims()
    worker.agent.kill()
    injector.killed_pids |= set(worker.tree())
    injector.killed_attempts |= {attempt_of(pid) for pid in shims}
    for pid in shims:
        send(pid, signal.SIGKILL)
    return lambda: start_again(worker)


async def server_disk_fails(injector: FaultInjector, fault: Fault) -> Undo:
    """The database's journal cannot grow any more: the server ends by itself, and is started again."""
    server, journal = injector.fleet.server, injector.fleet.home / "fleet.db-wal"
    limit = journal.stat().st_size if journal.exists() else 1
    server.limit_files(limit)

    async def undo() -> None:
        if server.alive:
            server.limit_files(None)
        await injector.fleet.server_settles()

    return undo


async def server_journal_removed(injector: FaultInjector, fault: Fault) -> Undo | None:
    server, journal = injector.fleet.server, injector.fleet.home / "fleet.db-wal"
    if not journal.exists():
        return None
    journal.unlink()
    for _ in range(400):
        if not server.alive:
            break
        await asyncio.sleep(0.05)
    assert not server.alive, "the server works on with a database whose journal is gone"
    return injector.fleet.start_server


KINDS = {
    **LINE_KINDS,
    **DEEPER_KINDS,
    "agent_and_shim_kill": FaultKind(6, agent_and_shim_kill),
    "server_disk_fails": FaultKind(3, server_disk_fails, (NETWORK,)),
    "server_journal_removed": FaultKind(3, server_journal_removed, (NETWORK,)),
    "agent_kill": FaultKind(14, agent_kill),
    "agent_stop": FaultKind(12, agent_stop),
    "agent_restart": FaultKind(4, agent_restart),
    "trainer_kill": FaultKind(8, trainer_kill),
    # A SIGCONT of ours must not wake what a guardian holds back, and a frozen guardian holds nothing back: while one of
    # these two lasts, every worker keeps its connection to the orchestrator.
    "trainer_stop": FaultKind(8, trainer_stop, (NETWORK, WORKER)),
    "shim_kill": FaultKind(10, shim_kill),
    "shim_stop": FaultKind(8, shim_stop, (NETWORK, WORKER)),
    "machine_death": FaultKind(10, machine_death),
    "machine_freeze": FaultKind(10, machine_freeze),
    "server_kill": FaultKind(14, server_kill, (NETWORK,)),
    "server_stop": FaultKind(8, server_stop, (NETWORK,)),
    "server_restart": FaultKind(3, server_restart, (NETWORK,)),
    "drop_all": FaultKind(8, drop_all, (NETWORK,)),
    "cut_off": FaultKind(10, cut_off),
}


def draw_faults(seed: int, rounds: int, without: Collection[str] = ()) -> list[Fault]:
    """`without` are kinds that cannot be done here."""
    rng = random.Random(seed)
    weights = {name: kind.weight for name, kind in KINDS.items() if name not in without}
    return [draw_fault(rng, weights) for _ in range(rounds)]


def draw_fault(rng: random.Random, weights: Mapping[str, float]) -> Fault:
    kind = rng.choices(list(weights), list(weights.values()))[0]
    behind_proxy = kind == "cut_off" or kind in LINE_KINDS
    candidates = (IN_CELL,) if kind in CELL_KINDS else BEHIND_PROXY if behind_proxy else tuple(range(WORKERS))
    return Fault(
        kind=kind,
        after_s=rng.uniform(*BETWEEN_S),
        worker=rng.choice(candidates),
        hold_s=rng.uniform(*(LONG_S if rng.random() < 0.4 else SHORT_S)),
        pick=rng.random(),
    )
