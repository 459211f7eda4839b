"""Every benchmark by its name."""

from collections.abc import Callable

from msgspec import Struct

from bench.benchmarks import (
    agent,
    backlog,
    fleet,
    heartbeats,
    latency,
    lifecycles,
    logs,
    slurm,
    store,
    upload_memory,
    uploads,
)
from bench.options import Options
from bench.rows import Results, Target


class Benchmark(Struct, frozen=True, kw_only=True):
    title: str
    targets: tuple[Target, ...]
    measure: Callable[[Options, Results], None]
    default: bool = True
    """Whether it runs where no name is given."""


BENCHMARKS = {
    "lifecycles": Benchmark(title=lifecycles.TITLE, targets=lifecycles.TARGETS, measure=lifecycles.measure),
    "latency": Benchmark(title=latency.TITLE, targets=latency.TARGETS, measure=latency.measure),
    "heartbeats": Benchmark(title=heartbeats.TITLE, targets=heartbeats.TARGETS, measure=heartbeats.measure),
    "fleet": Benchmark(title=fleet.TITLE, targets=fleet.TARGETS, measure=fleet.measure),
    "backlog": Benchmark(title=backlog.TITLE, targets=backlog.TARGETS, measure=backlog.measure),
    "agent": Benchmark(title=agent.TITLE, targets=agent.TARGETS, measure=agent.measure),
    "store": Benchmark(title=store.TITLE, targets=(), measure=store.measure),
    "logs": Benchmark(title=logs.TITLE, targets=logs.TARGETS, measure=logs.measure),
    "uploads": Benchmark(title=uploads.TITLE, targets=uploads.TARGETS, measure=uploads.measure),
    "upload-memory": Benchmark(
        title=upload_memory.TITLE, targets=upload_memory.TARGETS, measure=upload_memory.measure
    ),
    "slurm": Benchmark(title=slurm.TITLE, targets=slurm.TARGETS, measure=slurm.measure, default=False),
}
DEFAULT = tuple(name for name, benchmark in BENCHMARKS.items() if benchmark.default)
