"""A large fleet connected and mostly silent: what it costs the server, and how quickly a job still finds a worker."""

import resource
import time

from bench.load.generator import Crowd, create_seats, crowds
from bench.load.process import Attend, Told
from bench.machine import rss_bytes
from bench.options import Options
from bench.programs import NotInTime, Server, running_server, scratch
from bench.rows import Result, percentile

HEARTBEAT_S = 30.0
SUBMITS_PER_S = 5.0
CLIENT_PROCESSES = 2
KIB_EACH = 45.0
CORE_PERCENT = 25.0
DISPATCH_P99_MS = 100.0
SLICES = 2


def measure(options: Options) -> Result:
    _allow_many_files()
    result = Result(
        benchmark="fleet",
        title=f"{options.workers:,} workers connected, a heartbeat each every {HEARTBEAT_S:g} s",
    )
    with scratch() as folder, running_server(folder) as server:
        alone = rss_bytes(server.pid)
        began = time.monotonic()
        seats = create_seats(server, options.workers)
        result.add("creating workers", "a second", [options.workers / (time.monotonic() - began)])
        began = time.monotonic()
        with crowds(server, seats, CLIENT_PROCESSES) as made:
            result.add("connecting workers", "a second", [options.workers / (time.monotonic() - began)])
            shares, told = [], []
            for _ in range(SLICES):
                share, heard = _watch(server, made, options.rest_s)
                shares.append(share)
                told += heard
            each = (rss_bytes(server.pid) - alone) / options.workers / 1024
    waits = _waits_ms(told)
    result.add(
        "server memory per worker",
        "KiB",
        [each],
        "growth of the resident size since before they were created",
    )
    core = result.add("server CPU", "% of a core", shares, f"over {options.rest_s:g} s each")
    result.add("heartbeats", "a second", [sum(one.beats for one in told) / (SLICES * options.rest_s)])
    result.add(
        "dispatch p50", "ms", [percentile(waits, 0.50)], f"{len(waits)} jobs at {SUBMITS_PER_S:g} a second"
    )
    p99 = result.add("dispatch p99", "ms", [percentile(waits, 0.99)], "submission sent to offer received")
    result.at_most("server memory per worker", each, KIB_EACH, "KiB")
    result.below("server CPU", core, CORE_PERCENT, "% of a core")
    result.at_most("dispatch p99", p99, DISPATCH_P99_MS, "ms")
    return result


def _watch(server: Server, made: list[Crowd], seconds: float) -> tuple[float, list[Told]]:
    """The server's share of a core meanwhile, and what the crowds saw."""
    cpu_before, began = server.cpu_s, time.monotonic()
    for number, crowd in enumerate(made):
        crowd.tell(Attend(seconds, HEARTBEAT_S, 0.0 if number else SUBMITS_PER_S))
    told = [crowd.hear() for crowd in made]
    share = (server.cpu_s - cpu_before) / (time.monotonic() - began) * 100
    for one in told:
        if one.troubles or one.lost_streams:
            raise NotInTime(
                f"{one.lost_streams} streams lost, {one.troubles} calls failed: {one.last_trouble}"
            )
    return share, told


def _waits_ms(told: list[Told]) -> list[float]:
    offered = {job_id: at for one in told for job_id, at in one.offered_at.items()}
    submitted = {job_id: at for one in told for job_id, at in one.submitted_at.items()}
    missing = submitted.keys() - offered.keys()
    if missing:
        raise NotInTime(f"{len(missing)} of {len(submitted)} jobs were never offered")
    return [(offered[job_id] - at) * 1e3 for job_id, at in submitted.items()]


def _allow_many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
