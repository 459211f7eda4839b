"""`./dev fuzz`: so many inputs by one seed, the figures, and every defect with what brings it back."""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice

from devtools.fuzz.judge import Defect, Tally
from devtools.fuzz.requests import KINDS
from devtools.fuzz.run import run_seed, servers

SHOWN = 20


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=20_000, help="how many inputs are sent (20000)")
    parser.add_argument(
        "--seed", type=int, default=1, help="the first seed; each server has the next one (1)"
    )
    parser.add_argument("--processes", type=int, default=1, help="how many servers are open at once (1)")
    parser.add_argument("--only", choices=KINDS, default="", help="send this kind of input alone (all kinds)")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no server after so many (no limit)")
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    total, defects = Tally(), list[Defect]()
    work = iter(servers(chosen.seed, chosen.inputs))
    with ProcessPoolExecutor(chosen.processes, multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_seed, one, chosen.only) for one in islice(work, chosen.processes)}
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for tally, more in (one.result() for one in done):
                total.add(tally)
                defects += more
                for defect in more:
                    print(f"\r{defect}", file=sys.stderr)
            print(f"\r{sum(total.inputs.values())} inputs, {len(defects)} defects", end="", file=sys.stderr)
            if time.monotonic() - began < chosen.minutes * 60:
                running |= {pool.submit(run_seed, one, chosen.only) for one in islice(work, len(done))}
    print(file=sys.stderr)
    print(report(total, defects, time.monotonic() - began))
    return 1 if defects else 0


def report(total: Tally, defects: list[Defect], seconds: float) -> str:
    count = sum(total.inputs.values())
    lines = [
        f"{count} inputs in {seconds:.0f} s ({count / seconds:.0f} a second)",
        f"{total.servers} servers, {total.over_sockets} inputs over real sockets",
        f"inputs    {_counts(total.inputs)}",
        f"statuses  {_counts(total.statuses)}",
        f"operations that were carried out at least once: {len(total.by_operation)}",
        f"defects   {len(defects)}",
    ]
    return "\n".join([*lines, *(f"  {one}" for one in defects[:SHOWN])])


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
