"""The deeper faults, and which of them this machine cannot do."""

from devtools.chaos.deeper.orders import Failing
from devtools.chaos.deeper.restores import backup_restored
from devtools.chaos.fleet import ChaosFleet
from devtools.chaos.injector import NETWORK, Fault, FaultInjector, FaultKind, Strike, Undo, undo_nothing

FURTHEST_OFF_S = 7200.0


async def server_clock_step(injector: FaultInjector, fault: Fault) -> Undo:
    """Its wall clock is another from now on, also for the backups made beside it."""
    assert injector.fleet.server_orders is not None
    injector.fleet.server_orders.set_clock(_off_s(fault))
    return undo_nothing


async def server_clock_step_and_kill(injector: FaultInjector, fault: Fault) -> Undo:
    """The next one starts at another time than the one before had."""
    await server_clock_step(injector, fault)
    injector.fleet.server.kill()
    return injector.fleet.start_server


async def worker_clock_step(injector: FaultInjector, fault: Fault) -> Undo:
    orders = injector.worker(fault).orders
    assert orders is not None
    orders.set_clock(_off_s(fault))
    return undo_nothing


def _off_s(fault: Fault) -> float:
    return (2 * fault.pick - 1) * FURTHEST_OFF_S


def server_disk_eio(calls: Failing) -> Strike:
    """Files of the database fail with EIO; the server goes on or ends, and is started again if it does."""

    async def strike(injector: FaultInjector, fault: Fault) -> Undo:
        orders = injector.fleet.server_orders
        assert orders is not None
        orders.fail(calls)

        async def undo() -> None:
            orders.fail(Failing.NOTHING)
            await injector.fleet.server_settles()

        return undo

    return strike


def packets_lost(*, to_server: bool, to_worker: bool) -> Strike:
    async def strike(injector: FaultInjector, fault: Fault) -> Undo:
        cell = injector.fleet.cell
        assert cell is not None
        cell.lose(to_server=to_server, to_worker=to_worker)

        async def undo() -> None:
            cell.heal()

        return undo

    return strike


CELL_KINDS = {
    "packets_lost_to_server": FaultKind(4, packets_lost(to_server=True, to_worker=False)),
    "packets_lost_to_worker": FaultKind(4, packets_lost(to_server=False, to_worker=True)),
    "packets_lost_both_ways": FaultKind(4, packets_lost(to_server=True, to_worker=True)),
}
"""All need the worker in a network namespace."""
INTERPOSED_KINDS = {
    "server_clock_step": FaultKind(4, server_clock_step, (NETWORK,)),
    "server_clock_step_and_kill": FaultKind(3, server_clock_step_and_kill, (NETWORK,)),
    "worker_clock_step": FaultKind(4, worker_clock_step),
    "server_disk_eio_at_sync": FaultKind(3, server_disk_eio(Failing.SYNC), (NETWORK,)),
    "server_disk_eio_at_write": FaultKind(3, server_disk_eio(Failing.WRITE), (NETWORK,)),
    "server_disk_eio_at_read": FaultKind(3, server_disk_eio(Failing.READ), (NETWORK,)),
}
"""All need the library between a program and the C library."""
DEEPER_KINDS = {
    **CELL_KINDS,
    **INTERPOSED_KINDS,
    "backup_restored": FaultKind(2, backup_restored, (NETWORK,)),
}


def impossible_here(fleet: ChaosFleet) -> dict[str, str]:
    """Returns each kind that cannot be done on this machine, and why."""
    missing: dict[str, str] = {}
    if fleet.cell is None:
        missing |= dict.fromkeys(CELL_KINDS, "no network namespace could be made (it takes root and `ip`)")
    if fleet.library is None:
        missing |= dict.fromkeys(INTERPOSED_KINDS, "there is no C compiler (cc)")
    return missing
