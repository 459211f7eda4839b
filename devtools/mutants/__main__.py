"""`./dev mutants`: puts each known defect into a copy of the code and shows the tests failing."""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue

from devtools.mutants.killers import Killers
from devtools.mutants.table import MUTANTS, Mutant
from devtools.mutants.workbench import Workbench, occurrences


class Hunt:
    """Shows the mutants to their tests, on as many workbenches as there are threads."""

    def __init__(self, benches: Sequence[Workbench], killers: Killers) -> None:
        self._killers = killers
        self._idle: SimpleQueue[Workbench] = SimpleQueue()
        for bench in benches:
            self._idle.put(bench)

    def is_killed(self, mutant: Mutant) -> bool:
        began = time.monotonic()
        count = occurrences(mutant)
        verdict = self._killer(mutant) if count == 1 else None
        if count != 1:
            outcome = f"CANNOT BE APPLIED (its text occurs {count} times in {mutant.file})"
        else:
            outcome = f"killed by {verdict}" if verdict else "SURVIVED"
        print(f"{mutant.name:<40} {time.monotonic() - began:6.1f} s  {outcome[:150]}", flush=True)
        return verdict is not None

    def _killer(self, mutant: Mutant) -> str | None:
        """Whoever noticed last time is asked first: mostly that is all."""
        bench = self._idle.get()
        try:
            with bench.holding(mutant):
                for tests in (*self._killers.of(mutant), *mutant.tests):
                    failure = bench.failure(tests)
                    if failure is not None and not self._killers.fails_anyway(failure, bench):
                        self._killers.note(mutant, failure)
                        return failure.line
        finally:
            self._idle.put(bench)
        return None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev mutants", description=__doc__)
    parser.add_argument("--only", action="append", help="this one alone; may be repeated")
    parser.add_argument("--list", action="store_true", help="name them and do nothing")
    parser.add_argument("--parallel", type=int, default=2)
    options = parser.parse_args(argv)
    mutants = [mutant for mutant in MUTANTS if not options.only or mutant.name in options.only]
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name:<40} {mutant.defect}")
        return 0
    with ExitStack() as benches:
        shops = [benches.enter_context(Workbench()) for _ in range(min(options.parallel, len(mutants)))]
        hunt = Hunt(shops, Killers())
        with ThreadPoolExecutor(max(1, len(shops))) as pool:
            results = list(pool.map(hunt.is_killed, mutants))
    print(f"{sum(results)} of {len(results)} killed")
    return 0 if mutants and all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
