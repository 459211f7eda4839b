"""Computes what GPUs cost that nobody uses now, on the workers that are connected."""

from collections.abc import Callable, Iterable

from msgspec import Struct

from simpletuner_fleet.core.money.prices import PriceList, gpu_price
from simpletuner_fleet.core.placement.matching import Occupancy
from simpletuner_fleet.core.workers.worker import Connection, Worker, gpu_identity


class IdleCost(Struct, frozen=True, kw_only=True):
    gpus: int
    """How many GPUs connected workers have, each counted once."""
    idle_gpus: int
    """How many of them no job holds."""
    idle_hourly_micros: int
    """What an hour of those costs, as far as it is known."""
    busy_hourly_micros: int
    unpriced_gpus: int
    """How many, idle or not, have no known price."""


def idle_cost(
    prices: PriceList, workers: Iterable[Worker], occupancy_of: Callable[[str], Occupancy]
) -> IdleCost:
    counted: set[str] = set()
    idle = idle_hourly = busy_hourly = unpriced = 0
    for worker in workers:
        if worker.connection is not Connection.CONNECTED:
            continue
        held = occupancy_of(worker.id).gpus
        for gpu in worker.gpus:
            identity = gpu_identity(worker.id, gpu.uuid)
            if identity in counted:
                continue
            counted.add(identity)
            price, is_idle = gpu_price(prices, worker, gpu), gpu.uuid not in held
            idle += is_idle
            unpriced += price is None
            idle_hourly += (price or 0) * is_idle
            busy_hourly += (price or 0) * (not is_idle)
    return IdleCost(
        gpus=len(counted),
        idle_gpus=idle,
        idle_hourly_micros=idle_hourly,
        busy_hourly_micros=busy_hourly,
        unpriced_gpus=unpriced,
    )
