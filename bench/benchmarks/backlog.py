"""Life cycles with a long queue against a short one: the same class, the same path, only the length differs.

Both queues keep their length: as many jobs are submitted as are completed, and each completion brings the next of the
queue to the worker that is free.
"""

from collections.abc import Sequence
from contextlib import ExitStack

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
    meters: dict[str, Meter] = {}
    with scratch() as folder, ExitStack() as stack:
        for name, length in lengths.items():
            load_backlog(folder / name, length)
            fleet = running_fleet(folder / name, options, program=program)
            meters[name] = Meter(*stack.enter_context(fleet))
        contestants = [Contestant(name, meter.rate) for name, meter in meters.items()]
        rates = measure_in_turns(contestants, options.repetitions, options.jobs)
    note = f"{options.long_queue:,} against {options.short_queue:,} queued"
    results.compare(LONG_QUEUE, "/s", rates[LONG], rates[SHORT], note)
    for name, meter in meters.items():
        results.add(f"server CPU per life cycle, {name} queue", "ms", meter.server_ms)
