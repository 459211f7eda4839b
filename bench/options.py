"""How long a run takes."""

from msgspec import Struct


class Options(Struct, frozen=True, kw_only=True):
    quick: bool = False
    repetitions: int = 5
    jobs: int = 2_000
    """Life cycles in each repetition."""
    cycle_workers: int = 64
    """Workers that make life cycles."""
    warm_up_jobs: int = 300
    latency_jobs: int = 150
    """Jobs in each repetition, one after another, for start and completion."""
    next_jobs: int = 121
    """Jobs that wait in a line for one worker."""
    long_queue: int = 100_000
    short_queue: int = 2_000
    workers: int = 5_000
    heartbeat_s: float = 5.0
    """How long heartbeats are sent as fast as they are answered, in each repetition."""
    rest_s: float = 60.0
    """How long something that should use little is watched."""


QUICK = Options(
    quick=True,
    repetitions=2,
    jobs=300,
    latency_jobs=8,
    next_jobs=6,
    long_queue=10_000,
    short_queue=500,
    workers=300,
    heartbeat_s=1.0,
    rest_s=4.0,
)
