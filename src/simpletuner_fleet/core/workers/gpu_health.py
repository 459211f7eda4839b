"""Decides which GPUs are given to no job: broken ones, and those that another program uses."""

from collections.abc import Collection, Mapping

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.workers.worker import Gpu

MAX_FOREIGN_GB = 1.0
"""A desktop takes some hundred MiB of a card that is still good for training."""

UNHEALTHY = "unhealthy"
OCCUPIED = "in use by another program"
KNOWN = frozenset({UNHEALTHY, OCCUPIED})


class Health(Struct, frozen=True):
    """Describes a GPU's health, as a worker saw it last; None is what it could not determine."""

    healthy: bool | None = None
    foreign_memory_gb: float | None = None

    @property
    def unusable(self) -> str | None:
        """Returns why the GPU should not be used; '' if it is fine, None if nothing is known."""
        if self.healthy is False:
            return UNHEALTHY
        if self.foreign_memory_gb is None:
            return None
        return OCCUPIED if self.foreign_memory_gb > MAX_FOREIGN_GB else ""


def with_health(
    gpus: tuple[Gpu, ...], seen: Mapping[str, Health], held: Collection[str] = ()
) -> tuple[Gpu, ...]:
    """Returns the GPUs with their health; unknown health changes nothing.

    A GPU that a job of ours holds does not count as used by others.
    """
    return tuple(_seen(gpu, seen.get(gpu.uuid), gpu.uuid in held) for gpu in gpus)


def _seen(gpu: Gpu, health: Health | None, held: bool) -> Gpu:
    unusable = health.unusable if health else None
    if health and health.healthy and gpu.unusable == UNHEALTHY:
        unusable = unusable or ""
    if unusable is None or unusable == gpu.unusable or (held and unusable == OCCUPIED):
        return gpu
    return replace(gpu, unusable=unusable)
