"""Throughput with a long queue against throughput with a short one."""

from bench.benchmarks.backlog_loading import BACKLOG_SHARES, load_backlog
from bench.benchmarks.lifecycles import WORKERS, Meter, fleet_of
from bench.options import Options
from bench.programs import scratch
from bench.rows import Result

SHORT = 100
AT_LEAST = 0.9


def measure(options: Options) -> Result:
    result = Result(
        benchmark="backlog",
        title=f"life cycles with {options.backlog:,} queued against {SHORT} queued, {WORKERS} workers",
    )
    short, long = [], []
    with scratch() as folder:
        homes = {SHORT: folder / "short", options.backlog: folder / "long"}
        for queued, home in homes.items():
            load_backlog(home / "server", queued)
        with fleet_of(homes[SHORT], WORKERS) as few, fleet_of(homes[options.backlog], WORKERS) as many:
            meters = Meter(*few), Meter(*many)
            for _ in range(options.repetitions):
                short.append(meters[0].rate(options.jobs))
                long.append(meters[1].rate(options.jobs))
    result.add(f"{SHORT} queued", "jobs/s", short)
    result.add(f"{options.backlog:,} queued", "jobs/s", long, BACKLOG_SHARES)
    ratios = [many_rate / few_rate for many_rate, few_rate in zip(long, short, strict=True)]
    ratio = result.add("ratio", "x", ratios, "each pair measured one right after the other")
    result.at_least("long queue against short", ratio, AT_LEAST, "x")
    return result
