"""Simulates many days of machines, or shows one seed in full (`python -m simpletuner_fleet.sim.provisioning`)."""

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from math import ceil

from simpletuner_fleet.sim.provisioning.run import run_days

TOLD_EVERY_DAYS = 250


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="simpletuner_fleet.sim.provisioning", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--for-days", type=int, help="as many seeds as have so many virtual days together")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--days", type=float, default=2.0, help="how many virtual days of each")
    parser.add_argument(
        "--seed", type=int, help="run this one seed alone, and print everything that happened"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    arguments = parser.parse_args(argv)
    if arguments.seed is not None:
        result = run_days(arguments.seed, arguments.days, whole_trace=True)
        print("\n".join(result.trace))
        print(f"seed {result.seed}: {result.violation or 'every promise kept'}")
        return 1 if result.violation else 0
    counts: Counter[str] = Counter()
    days, broken, began = 0.0, 0, time.monotonic()
    how_many = ceil(arguments.for_days / arguments.days) if arguments.for_days else arguments.seeds
    seeds = range(arguments.start, arguments.start + how_many)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(partial(run_days, days=arguments.days), seeds, chunksize=4):
            counts += result.counts
            before, days = days, days + result.days
            if days // TOLD_EVERY_DAYS > before // TOLD_EVERY_DAYS:
                print(f"{days:.0f} days, {broken} broken", file=sys.stderr, flush=True)
            if result.violation:
                broken += 1
                print(f"seed {result.seed}: {result.violation}", flush=True)
    for kind, count in sorted(counts.items()):
        print(f"{count:8d}  {kind}")
    took_s = time.monotonic() - began
    print(
        f"{len(seeds)} seeds, {days:.0f} virtual days, {broken} broken; {took_s:.0f} s, {took_s / days:.2f} s a day"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
