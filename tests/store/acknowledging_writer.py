"""A process to kill: writes without end and says each number as soon as it has been acknowledged."""

import asyncio
import sys

from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.ports import Store, Tx
from simpletuner_fleet.store.opening import open_store
from tests.store.samples import BUNDLE, event, job

WRITERS = 8


def add_next_job(tx: Tx) -> int:
    seq = tx.next_seq()
    tx.add_job(job(seq), BUNDLE)
    tx.append_audit(float(seq), [event(EventType.JOB_SUBMITTED, f"j_{seq}")])
    return seq


async def write_for_ever(store: Store) -> None:
    while True:
        print(await store.write(add_next_job), flush=True)


async def main(url: str) -> None:
    store = open_store(url)
    await asyncio.gather(*(write_for_ever(store) for _ in range(WRITERS)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
