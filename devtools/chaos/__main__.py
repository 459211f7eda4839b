"""Runs `./dev chaos [--faults N] [--seed S]`."""

import argparse
import math
import random
import sys
import time
from pathlib import Path

from devtools.chaos.faults import KINDS
from devtools.chaos.spells import Sum, note_in, noted_in, run_spells, spells_of, usual_fleets


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev chaos", description="Kill and freeze real processes at random."
    )
    parser.add_argument("--faults", "--rounds", type=int, default=100, help="how many faults (default 100)")
    parser.add_argument(
        "--seed", type=int, default=None, help="which faults; their effect varies with timing"
    )
    parser.add_argument(
        "--fleets",
        type=int,
        default=usual_fleets(),
        help="how many fleets are broken beside each other, where there is more than one spell (two for each core)",
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no further fault after so long (no limit)"
    )
    parser.add_argument(
        "--only", nargs="+", choices=sorted(KINDS), default=(), metavar="KIND", help="only these"
    )
    parser.add_argument(
        "--report",
        type=Path,
        help="write each verdict to this file as it is found; with the same seed again, spells that are in it are done",
    )
    parser.add_argument("--quiet", action="store_true", help="only the figures at the end")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if args.seed is None else args.seed
    began = time.monotonic()
    spells = spells_of(seed, args.faults, args.only, began + args.minutes * 60)
    print(f"chaos with seed {seed}: {args.faults} faults in {len(spells)} spells", flush=True)
    total = Sum(noted_in(args.report) if args.report else [], frozenset(args.only or KINDS))
    if total.verdicts:
        print(total.line(), flush=True)
    remaining = [spell for spell in spells if spell.seed not in total.seeds]
    for verdict in run_spells(remaining, args.fleets, not args.quiet):
        total.verdicts.append(verdict)
        if args.report:
            note_in(args.report, verdict)
        print(verdict.text(), flush=True)
        print(total.line(), flush=True)
    print(total.text(time.monotonic() - began))
    return 1 if total.violations else 0


if __name__ == "__main__":
    sys.exit(main())
