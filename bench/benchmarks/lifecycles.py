"""Full life cycles a second: submit, offer, accept, running, completed; every step durable before it is answered."""

import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psycopg
from msgspec import Struct

from bench.load.generator import LoadGenerator, connected_workers, create_accounts
from bench.load.orders import RunJobs
from bench.machine import fdatasync_ms
from bench.options import Options
from bench.peers import celery, dramatiq
from bench.peers.bare import running_bare_server
from bench.peers.task_queue import TaskQueue
from bench.programs import SIMPLETUNER, BenchmarkFailed, Server, running_server, scratch
from bench.rows import Results, Target
from bench.targets import CYCLES_AGAINST_CELERY, CYCLES_AGAINST_DRAMATIQ, CYCLES_ON_POSTGRES
from devtools.postgres import running_postgres

TARGETS = (CYCLES_AGAINST_DRAMATIQ, CYCLES_AGAINST_CELERY, CYCLES_ON_POSTGRES)
SUBMITTERS = 32
TITLE = f"full life cycles as a real agent makes them, {SUBMITTERS} submitters, no trainer"
BOTTLENECK_PERCENT = 80.0
DURABLE = ("fsync = on", "synchronous_commit = on", "full_page_writes = on")
SQLITE, POSTGRES, CELERY, DRAMATIQ, BARE = "SQLite", "PostgreSQL", "Celery", "Dramatiq", "bare"
Rates = dict[str, list[float]]


class Contestant(Struct, frozen=True):
    name: str
    rate: Callable[[int], float]


def measure(options: Options, results: Results) -> None:
    with scratch() as folder, ExitStack() as stack:
        results.add("one fdatasync", "ms", fdatasync_ms(folder), "the machine, before")
        meter = Meter(*stack.enter_context(running_fleet(_made(folder / "sqlite"), options)))
        contestants = [Contestant(SQLITE, meter.rate)]
        for name, opener in ((DRAMATIQ, dramatiq.running_dramatiq), (CELERY, celery.running_celery)):
            contestants += _open_peer(stack, name, opener, folder, results)
        contestants += _open_postgres(stack, folder, options, results)
        bare = Meter(*stack.enter_context(running_bare_server(_made(folder / "bare"), options)))
        contestants.append(Contestant(BARE, bare.rate))
        rates = measure_in_turns(contestants, options.repetitions, options.jobs)
        results.add("one fdatasync", "ms", fdatasync_ms(folder), "the machine, after")
    add_rows(rates, results)
    meter.add_rows(results)
    results.add("a server without rules, same requests", "/s", rates[BARE], "stored as durably")
    results.add("… its CPU per life cycle", "ms", bare.server_ms)


def measure_in_turns(contestants: Sequence[Contestant], rounds: int, jobs: int) -> Rates:
    """Measures all in turns, each round beginning with another, so that a slow minute is slow for all."""
    rates: Rates = {contestant.name: [] for contestant in contestants}
    for number in range(rounds):
        first = number % len(contestants)
        for contestant in (*contestants[first:], *contestants[:first]):
            rates[contestant.name].append(contestant.rate(jobs))
    return rates


def add_rows(rates: Rates, results: Results) -> None:
    rows: tuple[tuple[Target, str, str, str], ...] = (
        (CYCLES_AGAINST_DRAMATIQ, SQLITE, DRAMATIQ, dramatiq.SETTING),
        (CYCLES_AGAINST_CELERY, SQLITE, CELERY, celery.SETTING),
        (CYCLES_ON_POSTGRES, POSTGRES, SQLITE, "syncing every commit"),
    )
    for target, ours, peer, note in rows:
        if ours in rates and peer in rates:
            results.compare(target, "/s", rates[ours], rates[peer], note)


def _open_peer(
    stack: ExitStack,
    name: str,
    opener: Callable[[Path], AbstractContextManager[TaskQueue]],
    folder: Path,
    results: Results,
) -> list[Contestant]:
    """Starts a peer; where it cannot be started, a note says why and its row will be missing."""
    try:
        queue = stack.enter_context(opener(_made(folder / name.lower())))
    except (ImportError, OSError, BenchmarkFailed) as error:
        results.notes.append(f"{name} could not be measured: {error}")
        return []
    return [Contestant(name, queue.rate)]


def _open_postgres(stack: ExitStack, folder: Path, options: Options, results: Results) -> list[Contestant]:
    try:
        url = stack.enter_context(durable_postgres())
        meter = Meter(*stack.enter_context(running_fleet(_made(folder / "postgres"), options, url)))
    except (ImportError, OSError, subprocess.SubprocessError, BenchmarkFailed) as error:
        results.notes.append(f"PostgreSQL could not be measured: {error}")
        return []
    return [Contestant(POSTGRES, meter.rate)]


@contextmanager
def durable_postgres() -> Iterator[str]:
    """Syncs every commit, as it does for a user."""
    with running_postgres() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for setting in DURABLE:
                connection.execute(f"ALTER SYSTEM SET {setting}".encode())
            connection.execute("SELECT pg_reload_conf()")
        yield url


@contextmanager
def running_fleet(
    folder: Path,
    options: Options,
    database_url: str | None = None,
    *,
    program: Sequence[str] = SIMPLETUNER,
) -> Iterator[tuple[Server, LoadGenerator]]:
    """Yields a server and connected workers that have warmed up."""
    with (
        running_server(folder, database_url, program=program) as server,
        connected_workers(server, create_accounts(server, options.cycle_workers)) as (generator,),
    ):
        generator.carry_out(RunJobs(options.warm_up_jobs, SUBMITTERS))
        yield server, generator


class Meter:
    """Measures rates, and what both ends used meanwhile."""

    def __init__(self, server: Server, generator: LoadGenerator) -> None:
        self._server = server
        self._generator = generator
        self._server_share: list[float] = []
        self._client_share: list[float] = []
        self.server_ms: list[float] = []

    def rate(self, jobs: int) -> float:
        cpu_before = self._server.cpu_s
        answer = self._generator.carry_out(RunJobs(jobs, SUBMITTERS))
        if answer.completed < jobs:
            raise BenchmarkFailed(f"{answer.completed} of {jobs} jobs completed")
        cpu_s = self._server.cpu_s - cpu_before
        self._server_share.append(cpu_s / answer.seconds * 100)
        self._client_share.append(answer.cpu_s / answer.seconds * 100)
        self.server_ms.append(cpu_s / jobs * 1e3)
        return jobs / answer.seconds

    def add_rows(self, results: Results) -> None:
        results.add("server CPU", "% of a core", self._server_share)
        results.add("server CPU per life cycle", "ms", self.server_ms)
        limited = statistics.median(self._client_share) >= BOTTLENECK_PERCENT
        note = "the bottleneck" if limited else "not the bottleneck"
        results.add("client CPU", "% of a core", self._client_share, note)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
