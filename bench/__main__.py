"""`./dev bench [NAME…]`: measures, prints a table, judges. Exit status 1 when a row failed or is missing."""

import argparse
import subprocess
import sys
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.catalogue import BENCHMARKS, DEFAULT, Benchmark
from bench.machine import Machine, describe, why_not_idle
from bench.options import QUICK, Options
from bench.programs import BenchmarkFailed
from bench.report import Report, header, markdown, summary, table
from bench.rows import Results
from bench.self_test import self_test

FAILURES = (BenchmarkFailed, OSError, subprocess.SubprocessError, ImportError)


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    if arguments.list:
        print(_list())
        return 0
    if arguments.self_test:
        return self_test()
    machine = describe()
    print(header(machine), flush=True)
    if not may_run(machine, forced=arguments.quick or arguments.even_if_busy):
        return 1
    options = QUICK if arguments.quick else Options()
    report = run(arguments.names or list(DEFAULT), options, machine)
    if arguments.json:
        arguments.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if arguments.markdown:
        arguments.markdown.write_text(markdown(report))
    print(summary(report.results))
    return 0 if report.passed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    names = ", ".join(BENCHMARKS)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {names}; see --list")
    parser.add_argument("--list", action="store_true", help="print every benchmark with its targets, and end")
    parser.add_argument("--quick", action="store_true", help="a short run: smaller, and less to be trusted")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write them as a table for a document")
    parser.add_argument(
        "--even-if-busy", action="store_true", help="measure although the machine is not idle"
    )
    parser.add_argument("--self-test", action="store_true", help=argparse.SUPPRESS)
    return parser


def may_run(machine: Machine, *, forced: bool) -> bool:
    """A full run on a busy machine is refused unless it is forced; then it is only warned of."""
    why = why_not_idle(machine)
    if why:
        print(f"{'warning' if forced else 'refused'}: {why}", flush=True)
    if why and not forced:
        print("next: wait until it is idle, or add --even-if-busy", flush=True)
    print(flush=True)
    return forced or not why


def _list() -> str:
    lines = []
    for name, benchmark in BENCHMARKS.items():
        lines.append(f"{name}: {benchmark.title}{'' if name in DEFAULT else ' (only when named)'}")
        lines += [
            f"    {target.what}: {target.relation} {target.limit:,g} {target.unit}"
            for target in benchmark.targets
        ]
    return "\n".join(lines)


def run(names: list[str], options: Options, machine: Machine) -> Report:
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    report = Report(at=at, quick=options.quick, machine=machine, results=[])
    for name in names:
        results = run_benchmark(name, BENCHMARKS[name], options)
        report.results.append(results)
        print(f"{table(results)}\n  took {results.seconds:.0f} s\n", flush=True)
    return report


def run_benchmark(name: str, benchmark: Benchmark, options: Options) -> Results:
    """Rows that a benchmark does not bring are missing; they never pass."""
    results = Results(benchmark=name, title=benchmark.title)
    began = time.monotonic()
    why = "see the notes"
    try:
        benchmark.measure(options, results)
    except FAILURES as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
    results.complete(benchmark.targets, why)
    results.seconds = time.monotonic() - began
    return results


if __name__ == "__main__":
    sys.exit(main())
