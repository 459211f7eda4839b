"""A large fleet connected and mostly silent: what it costs the server, and how quickly a job still finds a worker."""

import resource
import time

from bench.load.generator import LoadGenerator, connected_workers, create_accounts
from bench.load.orders import Attend, LoadAnswer
from bench.machine import rss_bytes
from bench.options import Options
from bench.programs import BenchmarkFailed, Server, running_server, scratch
from bench.rows import Results, percentile
from bench.targets import DISPATCH_P99, FLEET_CPU, MEMORY_PLAIN, MEMORY_TLS

TARGETS = (MEMORY_PLAIN, MEMORY_TLS, DISPATCH_P99, FLEET_CPU)
HEARTBEAT_INTERVAL_S = 30.0
TITLE = f"a large fleet connected, a heartbeat of each worker every {HEARTBEAT_INTERVAL_S:g} s"
SUBMITS_PER_S = 5.0
LOAD_PROCESSES = 2
PERIODS = 2


def measure(options: Options, results: Results) -> None:
    _allow_many_files()
    _measure_plain(options, results)
    _measure_tls(options, results)


def _measure_plain(options: Options, results: Results) -> None:
    with scratch() as folder, running_server(folder) as server:
        rss_before, began = rss_bytes(server.pid), time.monotonic()
        accounts = create_accounts(server, options.workers)
        results.add("creating workers", "/s", [options.workers / (time.monotonic() - began)])
        began = time.monotonic()
        with connected_workers(server, accounts, LOAD_PROCESSES) as generators:
            results.add("connecting workers", "/s", [options.workers / (time.monotonic() - began)])
            _measure_dispatch(options, results, server, generators)
            results.judge(MEMORY_PLAIN, [_kib_each(server, rss_before, options)], _memory_note(options))


def _measure_tls(options: Options, results: Results) -> None:
    with scratch() as folder, running_server(folder, tls=True) as server:
        rss_before = rss_bytes(server.pid)
        accounts = create_accounts(server, options.workers)
        with connected_workers(server, accounts, LOAD_PROCESSES) as generators:
            _attend(generators, options.rest_s, submits_per_s=0.0)
            results.judge(MEMORY_TLS, [_kib_each(server, rss_before, options)], _memory_note(options))


def _kib_each(server: Server, rss_before: int, options: Options) -> float:
    return (rss_bytes(server.pid) - rss_before) / options.workers / 1024


def _memory_note(options: Options) -> str:
    return (
        f"growth of the resident size since before {options.workers:,} workers existed; streams open, "
        "heartbeats sent, connections for calls as the agent keeps them"
    )


def _measure_dispatch(
    options: Options, results: Results, server: Server, generators: list[LoadGenerator]
) -> None:
    shares, answers = [], []
    for _ in range(PERIODS):
        cpu_before, began = server.cpu_s, time.monotonic()
        answers += _attend(generators, options.rest_s, SUBMITS_PER_S)
        shares.append((server.cpu_s - cpu_before) / (time.monotonic() - began) * 100)
    waits = _waits_ms(answers)
    jobs = f"{len(waits)} jobs at {SUBMITS_PER_S:g} a second, submission sent to offer received"
    results.add("dispatch with a large fleet, p50", "ms", [percentile(waits, 0.50)])
    results.judge(DISPATCH_P99, [percentile(waits, 0.99)], jobs)
    results.judge(FLEET_CPU, shares, f"over {options.rest_s:g} s each, {options.workers:,} workers")
    heartbeats = sum(answer.heartbeats for answer in answers) / (PERIODS * options.rest_s)
    results.add("heartbeats", "/s", [heartbeats])


def _attend(generators: list[LoadGenerator], seconds: float, submits_per_s: float) -> list[LoadAnswer]:
    """Lets all send heartbeats, and the first submit jobs as well."""
    for number, generator in enumerate(generators):
        generator.send(Attend(seconds, HEARTBEAT_INTERVAL_S, 0.0 if number else submits_per_s))
    return [generator.receive() for generator in generators]


def _waits_ms(answers: list[LoadAnswer]) -> list[float]:
    offered = {job_id: at for answer in answers for job_id, at in answer.offered_at.items()}
    submitted = {job_id: at for answer in answers for job_id, at in answer.submitted_at.items()}
    missing = submitted.keys() - offered.keys()
    if missing:
        raise BenchmarkFailed(f"{len(missing)} of {len(submitted)} jobs were never offered")
    return [(offered[job_id] - at) * 1e3 for job_id, at in submitted.items()]


def _allow_many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
