"""How long a run takes."""

from msgspec import Struct


class Options(Struct, frozen=True, kw_only=True):
    repetitions: int = 5
    jobs: int = 2_000
    """Life cycles in each repetition."""
    latency_jobs: int = 200
    backlog: int = 100_000
    workers: int = 5_000
    rest_s: float = 60.0
    """How long something that should use little is watched."""
    quick: bool = False
    memory: bool = False
    """Of the agent while it uploads, instead of how fast it does."""


QUICK = Options(
    repetitions=2, jobs=500, latency_jobs=40, backlog=10_000, workers=500, rest_s=10.0, quick=True
)
