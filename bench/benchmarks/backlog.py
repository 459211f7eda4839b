"""Life cycles with a long queue against a short one: the same class, the same path, only the length differs.

Both queues keep their length: as many jobs are submitted as are completed, and each completion brings the next of the
queue to the worker that is free.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.benchmarks.backlog_loading import load_backlog
from bench.benchmarks.lifecycles import Contestant, Meter, measure_in_turns, running_fleet
from bench.options import Options
from bench.programs import SIMPLETUNER, scratch
from bench.rows import Results
from bench.targets import LONG_QUEUE

TARGETS = (LONG_QUEUE,)
TITLE = "life cycles with a long queue of the same class against a short one"
LONG, SHORT = "long", "short"


def measure(options: Options, results: Results) -> None:
    compare_queues(options, results, SIMPLETUNER)


def compare_queues(options: Options, results: Results, program: Sequence[str]) -> None:
    lengths = {SHORT: options.short_queue, LONG: options.long_queue}
    with scratch() as folder, ExitStack() as stack:
        contestants = []
        for name, length in lengths.items():
            load_backlog(folder / name, length)
            contestants.append(_contestant(stack, name, folder / name, options, program))
        rates = measure_in_turns(contestants, options.repetitions, options.jobs)
    note = f"{options.long_queue:,} against {options.short_queue:,} queued"
    results.compare(LONG_QUEUE, "/s", rates[LONG], rates[SHORT], note)


def _contestant(
    stack: ExitStack, name: str, folder: Path, options: Options, program: Sequence[str]
) -> Contestant:
    fleet = running_fleet(folder, options, program=program)
    return Contestant(name, Meter(*stack.enter_context(fleet)).rate)
