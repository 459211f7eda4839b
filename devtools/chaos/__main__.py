"""Runs `./dev chaos [--faults N] [--seed S]`."""

import argparse
import random
import sys

from devtools.chaos.run import run_chaos


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="./dev chaos", description="Kill and freeze real processes at random."
    )
    parser.add_argument(
        "--faults", "--rounds", dest="rounds", type=int, default=100, help="how many faults (default 100)"
    )
    parser.add_argument(
        "--seed", type=int, default=None, help="which faults; their effect varies with timing"
    )
    parser.add_argument("--quiet", action="store_true", help="only the figures at the end")
    args = parser.parse_args()
    seed = random.SystemRandom().randrange(1_000_000) if args.seed is None else args.seed
    print(f"chaos with seed {seed}: {args.rounds} rounds", flush=True)
    verdict = run_chaos(seed, args.rounds, verbose=not args.quiet)
    print(verdict.text())
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
