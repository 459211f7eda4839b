"""`python -m simpletuner_fleet.sim`: many seeds, or one told from beginning to end."""

import argparse
import gc
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor

from simpletuner_fleet.sim.checks.tally import Tally
from simpletuner_fleet.sim.run import Result, run_seed

CHUNK = 50
SWEPT_UP_EVERY = 5


def run_chunk(first: int, last: int) -> list[Result]:
    return list(run_in_turn(range(first, last)))


def run_in_turn(seeds: Iterable[int]) -> Iterator[Result]:
    """What a seed leaves behind is swept up after a few of them, all at once, and not again and again while one runs."""
    gc.freeze()
    gc.disable()
    try:
        for seed in seeds:
            yield run_seed(seed)
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
    arguments = parser.parse_args(argv)
    if arguments.seed is not None:
        return run_one(arguments.seed, whole=arguments.trace)
    if arguments.fail_fast:
        return run_until_one_fails(arguments.start, arguments.seeds)
    return run_many(arguments.start, arguments.seeds, arguments.jobs)


def run_one(seed: int, *, whole: bool) -> int:
    result = run_seed(seed, whole_trace=whole)
    print("\n".join(result.trace))
    print(f"seed {seed}: {result.violation or 'every promise kept'} (trace {result.trace_hash})")
    return 1 if result.violation else 0


def run_until_one_fails(start: int, seeds: int) -> int:
    for result in run_in_turn(range(start, start + seeds)):
        if result.violation:
            print(f"seed {result.seed}: {result.violation}")
            return 1
    return 0


def run_many(start: int, seeds: int, jobs: int) -> int:
    tally, began = Tally(), time.monotonic()
    chunks = [(first, min(first + CHUNK, start + seeds)) for first in range(start, start + seeds, CHUNK)]
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
