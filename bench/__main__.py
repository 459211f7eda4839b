"""`./dev bench [NAME…]`: measures, prints, judges. Exit status 1 when a target was missed."""

import argparse
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.benchmarks import agent, backlog, fleet, latency, lifecycles, logs, store, upload_memory, uploads
from bench.machine import Machine, describe
from bench.options import QUICK, Options
from bench.rows import Result, told

BENCHMARKS: dict[str, Callable[[Options], Result]] = {
    "latency": latency.measure,
    "lifecycles": lifecycles.measure,
    "backlog": backlog.measure,
    "fleet": fleet.measure,
    "agent": agent.measure,
    "store": store.measure,
    "logs": logs.measure,
    "uploads": lambda options: (upload_memory if options.memory else uploads).measure(options),
}


class Report(msgspec.Struct, kw_only=True):
    at: str
    quick: bool
    machine: Machine
    results: list[Result]


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default"
    )
    parser.add_argument("--quick", action="store_true", help="a short run: smaller, and less to be trusted")
    parser.add_argument(
        "--memory", action="store_true", help="uploads: watch the agent's memory instead of the rate"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    options = replace(QUICK if arguments.quick else Options(), memory=arguments.memory)
    report = _run(arguments.names or list(BENCHMARKS), options)
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return 0 if all(target.reached for result in report.results for target in result.targets) else 1


def _run(names: list[str], options: Options) -> Report:
    machine = describe()
    report = Report(
        at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), quick=options.quick, machine=machine, results=[]
    )
    print(
        f"{machine.cores} cores, {machine.memory_gib:g} GiB, {machine.architecture}, Linux {machine.kernel}, "
        f"Python {machine.python}, SQLite {machine.sqlite}, load {machine.load:g}\n",
        flush=True,
    )
    for name in names:
        began = time.monotonic()
        result = BENCHMARKS[name](options)
        report.results.append(result)
        print(f"{told(result)}\n  took {time.monotonic() - began:.0f} s\n", flush=True)
    return report


if __name__ == "__main__":
    sys.exit(main())
