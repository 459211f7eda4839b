"""The store alone: job transitions a second against bare SQLite commits of the same disk."""

import asyncio
import sqlite3
import time
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.load.generator import NOOP, NOOP_CONFIG
from bench.options import Options
from bench.programs import scratch
from bench.rows import Results
from simpletuner_fleet.core.configs.bundle import read_bundle
from simpletuner_fleet.core.events import ORCHESTRATOR, Event, EventType
from simpletuner_fleet.core.jobs.job import Hold, Job
from simpletuner_fleet.core.jobs.submitting.submission import new_job
from simpletuner_fleet.core.jobs.submitting.submit_request import SubmitRequest
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.ports import Store, Tx
from simpletuner_fleet.store import open_store

AT_ONCE = 64
TITLE = "store transitions (job row and audit entry), for information"


def measure(options: Options, results: Results) -> None:
    count = options.jobs
    with scratch() as folder:
        ours, alone, raw, batched = [], [], [], []
        for repetition in range(options.repetitions):
            home = folder / str(repetition)
            home.mkdir()
            ours.append(asyncio.run(_transitions(home / "ours.db", count, AT_ONCE)))
            alone.append(asyncio.run(_transitions(home / "alone.db", count // 4, 1)))
            raw.append(_raw_commits(home / "raw.db", count // 4, rows_each=1))
            batched.append(_raw_commits(home / "batched.db", count, rows_each=AT_ONCE))
        together = results.add(f"transitions, {AT_ONCE} callers", "/s", ours)
        one = results.add("transitions, one caller", "/s", alone)
        bare = results.add("SQLite FULL, a row a commit", "/s", raw, "the machine's limit for one caller")
        bare_many = results.add(f"SQLite FULL, {AT_ONCE} rows a commit", "rows/s", batched)
        results.add("one caller against bare commits", "x", [one / bare])
        results.add(f"{AT_ONCE} callers against bare batches", "x", [together / bare_many])


async def _transitions(path: Path, count: int, callers: int) -> float:
    store = open_store(f"sqlite:///{path}")
    try:
        jobs = await store.write(lambda tx: [_add_job(tx, number) for number in range(callers)])
        each = count // callers
        began = time.perf_counter()
        await asyncio.gather(*(_turn_over(store, job, each) for job in jobs))
        return each * callers / (time.perf_counter() - began)
    finally:
        await store.close()


async def _turn_over(store: Store, job: Job, times: int) -> None:
    """Changes its priority again and again, each change with its entry in the audit log."""
    for turn in range(times):
        changed = replace(job, priority=turn % 10)

        def step(tx: Tx, changed: Job = changed) -> None:
            tx.save_job(changed)
            event = Event(
                type=EventType.JOB_PRIORITY_SET,
                actor=ORCHESTRATOR,
                target_type="job",
                target_id=changed.id,
                details={"to": changed.priority},
            )
            tx.append_audit(float(changed.version), [event])

        await store.write(step)
        job = replace(changed, version=changed.version + 1)


def _add_job(tx: Tx, number: int) -> Job:
    bundle = read_bundle(NOOP_CONFIG)
    job = new_job(
        SubmitRequest(config_name=NOOP),
        bundle,
        Policy(),
        job_id=f"j_store{number:04d}",
        seq=tx.next_seq(),
        config_name=NOOP,
        config_version=1,
        owner="t_bench",
        hold=Hold.NONE,
        now=float(number),
    )
    tx.add_job(job, msgspec.json.encode(bundle))
    return job


def _raw_commits(path: Path, rows: int, rows_each: int) -> float:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)",
        ):
            connection.execute(statement).fetchall()
        began = time.perf_counter()
        for _ in range(rows // rows_each):
            connection.execute("BEGIN IMMEDIATE")
            for _ in range(rows_each):
                connection.execute("INSERT INTO t (v) VALUES (?)", ("x" * 300,))
            connection.execute("COMMIT")
        return rows // rows_each * rows_each / (time.perf_counter() - began)
    finally:
        connection.close()
