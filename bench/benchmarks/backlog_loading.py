"""A long queue put into the store before the server starts: copies of one job that was really submitted.

Every copy is of the same class as what is submitted later, so that a long and a short queue differ in length alone.
"""

import asyncio
from pathlib import Path

from msgspec.structs import replace

from bench.load.generator import NOOP, NOOP_CONFIG, SUBMIT_NOOP
from bench.programs import BenchmarkFailed, running_server
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.store import open_store

JOBS_PER_COMMIT = 1_000


def load_backlog(folder: Path, jobs: int) -> None:
    """Leaves so many queued jobs in the home of a server that `running_server` will start in the folder."""
    folder.mkdir()
    with running_server(folder) as server:
        server.put_config(NOOP, NOOP_CONFIG)
        job_id = str(server.post("/api/queue/submit", SUBMIT_NOOP)["job_id"])
    asyncio.run(_copy(folder / "server" / "fleet.db", job_id, jobs - 1))


async def _copy(database: Path, job_id: str, copies: int) -> None:
    store = open_store(f"sqlite:///{database}")
    try:
        for first in range(0, copies, JOBS_PER_COMMIT):
            numbers = range(first, min(copies, first + JOBS_PER_COMMIT))
            await store.write(lambda tx, numbers=numbers: _add_copies(tx, job_id, numbers))  # type: ignore[misc]
    finally:
        await store.close()


def _add_copies(tx: Tx, job_id: str, numbers: range) -> None:
    original, bundle = tx.job(job_id), tx.job_bundle(job_id)
    if original is None or bundle is None:
        raise BenchmarkFailed("the job to copy is gone")
    for number in numbers:
        tx.add_job(replace(original, id=f"j_copy{number:08d}", seq=tx.next_seq()), bundle)
