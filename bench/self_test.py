"""`./dev bench --self-test`: shows that the backlog row can fail, on a server made slower by every job in its queue."""

import sys

from msgspec.structs import replace

from bench.benchmarks import backlog
from bench.options import QUICK, Options
from bench.report import table
from bench.rows import Results, Verdict

SLOW_SERVER = (sys.executable, "-m", "bench.processes.slow_server")
SMALL: Options = replace(
    QUICK, repetitions=1, jobs=16, cycle_workers=4, warm_up_jobs=4, long_queue=1_200, short_queue=20
)


def backlog_on_slow_server() -> Results:
    results = Results(benchmark="backlog", title="the same on a server that walks its queue")
    backlog.compare_queues(SMALL, results, SLOW_SERVER)
    return results


def self_test() -> int:
    results = backlog_on_slow_server()
    print(table(results))
    caught = [row.verdict for row in results.rows if row.target] == [Verdict.FAIL]
    print("the slower server was caught" if caught else "THE SLOWER SERVER WAS NOT CAUGHT")
    return 0 if caught else 1
