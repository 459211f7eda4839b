"""A long queue put into the store before the server starts: through its own contract, a thousand jobs a commit."""

import asyncio
from pathlib import Path

import msgspec

from bench.crowd import NOOP, NOOP_CONFIG
from simpletuner_fleet.core.bundle import read_bundle
from simpletuner_fleet.core.job import Hold, Target
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.submission import new_job
from simpletuner_fleet.core.submit_request import SubmitRequest
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.store import open_store

JOBS_PER_COMMIT = 1_000
OTHER_CLASSES = 50
BACKLOG_SHARES = f"half of them of {OTHER_CLASSES} classes nobody can run, half of the class that is run"
LONG_AGO = 1.0e9


def load_backlog(home: Path, jobs: int) -> None:
    home.mkdir(parents=True, mode=0o700)
    asyncio.run(_load(home, jobs))


async def _load(home: Path, jobs: int) -> None:
    store = open_store(f"sqlite:///{home / 'fleet.db'}")
    try:
        for first in range(0, jobs, JOBS_PER_COMMIT):
            numbers = range(first, min(jobs, first + JOBS_PER_COMMIT))
            await store.write(lambda tx, numbers=numbers: _add(tx, numbers))  # type: ignore[misc]
    finally:
        await store.close()


def _add(tx: Tx, numbers: range) -> None:
    bundle = read_bundle(NOOP_CONFIG)
    encoded = msgspec.json.encode(bundle)
    for number in numbers:
        labels = {"nobody": f"has-{number // 2 % OTHER_CLASSES}"} if number % 2 else {}
        job = new_job(
            SubmitRequest(config_name=NOOP, target=Target.WORKER, worker_labels=labels),
            bundle,
            Policy(),
            job_id=f"j_backlog{number:07d}",
            seq=tx.next_seq(),
            config_name=NOOP,
            config_version=1,
            owner="t_backlog",
            hold=Hold.NONE,
            now=LONG_AGO + number,
        )
        tx.add_job(job, encoded)
