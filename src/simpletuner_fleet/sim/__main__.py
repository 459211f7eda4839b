"""Simulates the fleet for many seeds, or shows one seed in full (`python -m simpletuner_fleet.sim`)."""

import argparse
import gc
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from simpletuner_fleet.sim.checks.tally import Tally
from simpletuner_fleet.sim.draw import LARGE, Size
from simpletuner_fleet.sim.run import Result, run_seed

CHUNK = 50
SWEPT_UP_EVERY = 5


def run_chunk(first: int, last: int, size: Size | None) -> list[Result]:
    return list(run_in_turn(range(first, last), size))


def run_in_turn(seeds: Iterable[int], size: Size | None = None) -> Iterator[Result]:
    """Runs the seeds in turn; garbage is collected only between them, after every few, and not while one runs."""
    gc.freeze()
    gc.disable()
    try:
        for seed in seeds:
            yield run_seed(seed, size=size)
            if seed % SWEPT_UP_EVERY == 0:
                gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simpletuner_fleet.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds to run")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run this one seed alone")
    parser.add_argument("--trace", action="store_true", help="with --seed: print everything that happened")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--fail-fast", action="store_true", help="end at the first broken promise")
    parser.add_argument(
        "--large", action="store_true", help="every world is a large one, not one of a hundred"
    )
    arguments = parser.parse_args(argv)
    size = LARGE if arguments.large else None
    if arguments.seed is not None:
        return run_one(arguments.seed, size, whole=arguments.trace)
    if arguments.fail_fast:
        return run_until_one_fails(arguments.start, arguments.seeds, size)
    return run_many(arguments.start, arguments.seeds, arguments.jobs, size)


def run_one(seed: int, size: Size | None, *, whole: bool) -> int:
    result = run_seed(seed, size=size, whole_trace=whole)
    print("\n".join(result.trace))
    print(f"seed {seed}: {result.violation or 'every promise kept'} (trace {result.trace_hash})")
    return 1 if result.violation else 0


def run_until_one_fails(start: int, seeds: int, size: Size | None) -> int:
    for result in run_in_turn(range(start, start + seeds), size):
        if result.violation:
            print(f"seed {result.seed}: {result.violation}")
            return 1
    return 0


def run_many(start: int, seeds: int, jobs: int, size: Size | None) -> int:
    tally, began = Tally(), time.monotonic()
    end = start + seeds
    chunks = [(first, min(first + CHUNK, end), size) for first in range(start, end, CHUNK)]
    with ProcessPoolExecutor(jobs) as pool:
        for results in pool.map(run_chunk, *zip(*chunks, strict=True)):
            for result in results:
                tally.add(result)
                if result.violation:
                    print(f"seed {result.seed}: {result.violation}", flush=True)
            if tally.seeds % 500 < CHUNK:
                print(f"{tally.seeds} seeds, {len(tally.failures)} failed", file=sys.stderr, flush=True)
    print("\n".join(tally.report()))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = (used.ru_utime + used.ru_stime) / max(1, tally.seeds)
    print(
        f"{time.monotonic() - began:.1f} s, {cpu_s * 1000:.1f} ms of CPU for each seed: {1 / cpu_s:.0f} a second on a core"
    )
    for failure in tally.failures[:3]:
        print(f"\nseed {failure.seed}: {failure.violation}; the last events:")
        print("\n".join(failure.trace))
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())
