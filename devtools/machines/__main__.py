"""`./dev machines`: a real server and real workers on clouds of our own for some minutes, or `--days` of it simulated."""

import argparse
import sys

from devtools.machines.run import run
from simpletuner_fleet.sim.provisioning.__main__ import main as simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev machines", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long jobs come and things go wrong")
    parser.add_argument(
        "--seed", type=int, default=1, help="of what goes wrong; real programs never repeat themselves"
    )
    parser.add_argument("--days", type=int, help="instead: so many days on virtual time, on two processors")
    arguments = parser.parse_args()
    if arguments.days:
        return simulate(["--for-days", str(arguments.days)])
    return run(arguments.minutes, arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
