"""Full life cycles a second: submit, offer, accept, complete; every step durable before it is answered."""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from bench.load.generator import Crowd, create_seats, crowds
from bench.load.process import Flow, Told
from bench.machine import fdatasync_ms
from bench.options import Options
from bench.peers.celery_peer import WORKER_PROCESSES, running_celery
from bench.programs import NotInTime, Server, running_server, scratch
from bench.rows import Result
from devtools.postgres import running_postgres

WORKERS = 64
SUBMITTERS = 32
WARM_UP_JOBS = 300
DURABLE = ("fsync = on", "synchronous_commit = on", "full_page_writes = on")


def measure(options: Options) -> Result:
    result = Result(
        benchmark="lifecycles", title=f"full life cycles, {WORKERS} workers in another process, no trainer"
    )
    with scratch() as folder:
        result.add("one fdatasync", "ms", fdatasync_ms(folder), "the machine, before")
        ours, theirs = _beside_celery(folder, options, result)
        ratios = [mine / peer for mine, peer in zip(ours, theirs, strict=True)]
        ratio = result.add("ratio to Celery", "x", ratios, "each pair measured one right after the other")
        result.at_least("life cycles against Celery + Redis, appendfsync always", ratio, 1.0, "x")
        result.add("one fdatasync", "ms", fdatasync_ms(folder), "the machine, after")
        _on_postgres(folder, options, result)
    return result


def _beside_celery(folder: Path, options: Options, result: Result) -> tuple[list[float], list[float]]:
    """Turn and turn about, so that a slow minute of the machine is slow for both."""
    ours: list[float] = []
    theirs: list[float] = []
    keeping: list[float] = []
    with ExitStack() as stack:
        server, crowd = stack.enter_context(fleet_of(folder, WORKERS))
        peer_folder = folder / "celery"
        peer_folder.mkdir()
        meter = Meter(server, crowd)
        peer = stack.enter_context(running_celery(peer_folder))
        for _ in range(options.repetitions):
            ours.append(meter.rate(options.jobs))
            theirs.append(peer.rate(options.jobs))
            keeping.append(peer.rate(options.jobs // 2, keep_results=True))
    result.add("life cycles, SQLite FULL", "jobs/s", ours)
    meter.tell(result)
    result.add(
        "Celery + Redis", "tasks/s", theirs, f"{WORKER_PROCESSES} processes, acks_late, outcomes not kept"
    )
    result.add("Celery + Redis, outcomes kept", "tasks/s", keeping, "as ours are; for information")
    return ours, theirs


def _on_postgres(folder: Path, options: Options, result: Result) -> None:
    """Syncing every commit, as it does for a user."""
    home = folder / "on-postgres"
    home.mkdir()
    with running_postgres() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            for setting in DURABLE:
                connection.execute(f"ALTER SYSTEM SET {setting}".encode())
            connection.execute("SELECT pg_reload_conf()")
        with fleet_of(home, WORKERS, url) as (server, crowd):
            meter = Meter(server, crowd)
            rates = [meter.rate(options.jobs) for _ in range(max(1, options.repetitions - 2))]
    result.add("life cycles, PostgreSQL", "jobs/s", rates, "for information")


@contextmanager
def fleet_of(folder: Path, workers: int, database_url: str | None = None) -> Iterator[tuple[Server, Crowd]]:
    """A server and a crowd that has warmed up."""
    with (
        running_server(folder, database_url) as server,
        crowds(server, create_seats(server, workers)) as (crowd,),
    ):
        checked(crowd.ask(Flow(WARM_UP_JOBS, SUBMITTERS)), WARM_UP_JOBS)
        yield server, crowd


class Meter:
    """Rates, and what both ends used meanwhile."""

    def __init__(self, server: Server, crowd: Crowd) -> None:
        self._server = server
        self._crowd = crowd
        self._server_share: list[float] = []
        self._client_share: list[float] = []
        self._server_ms: list[float] = []

    def rate(self, jobs: int) -> float:
        cpu_before = self._server.cpu_s
        told = checked(self._crowd.ask(Flow(jobs, SUBMITTERS)), jobs)
        used = self._server.cpu_s - cpu_before
        self._server_share.append(used / told.seconds * 100)
        self._client_share.append(told.cpu_s / told.seconds * 100)
        self._server_ms.append(used / jobs * 1e3)
        return jobs / told.seconds

    def tell(self, result: Result) -> None:
        result.add("server CPU", "% of a core", self._server_share)
        result.add("server CPU per life cycle", "ms", self._server_ms)
        share = statistics.median(self._client_share)
        result.add(
            "client CPU",
            "% of a core",
            self._client_share,
            "not the bottleneck" if share < 80 else "the bottleneck",
        )


def checked(told: Told, jobs: int) -> Told:
    if told.troubles or told.completed < jobs:
        raise NotInTime(
            f"{told.completed} of {jobs} jobs completed, {told.troubles} calls failed: {told.last_trouble}"
        )
    return told
