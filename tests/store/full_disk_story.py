"""What happens in a folder that fills up. Run where the space is small; prints what was seen as JSON."""

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

from simpletuner_fleet.core.audit import ChainCheck
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.ports import Store, Tx
from simpletuner_fleet.store.sqlite import SqliteStore
from tests.store.observing import Recorder
from tests.store.samples import event, job

BALLAST_BYTES = 6 * 1024 * 1024
BUNDLE = bytes(16 * 1024)


def add_next_job(tx: Tx) -> int:
    seq = tx.next_seq()
    tx.add_job(job(seq), BUNDLE)
    tx.append_audit(float(seq), [event(target=f"j_{seq}")])
    return seq


async def fill(store: Store) -> tuple[list[int], str]:
    """Writes four at a time until the first refusal: what was acknowledged, and what the refusal said."""
    acknowledged: list[int] = []
    while True:
        answers = await asyncio.gather(*(store.write(add_next_job) for _ in range(4)), return_exceptions=True)
        acknowledged += [answer for answer in answers if isinstance(answer, int)]
        for answer in answers:
            if isinstance(answer, StoreUnavailable):
                return acknowledged, answer.detail
            if isinstance(answer, BaseException):
                raise answer


async def missing(store: Store, acknowledged: list[int]) -> list[int]:
    return await store.read(lambda view: [seq for seq in acknowledged if view.job(f"j_{seq}") is None])


async def problems(store: Store) -> int:
    check = ChainCheck([])
    check.feed(await store.read(lambda view: view.audit_range(0, 100_000)))
    return len(check.finish())


async def story(folder: Path, *, limited_by_rlimit: bool) -> dict[str, Any]:
    ballast = folder / "ballast"
    ballast.write_bytes(bytes(BALLAST_BYTES))
    observer = Recorder()
    store = SqliteStore(folder / "fleet.db")
    store.observe(observer)
    await store.write(lambda tx: tx.put_setting("begun", "yes"))
    known_resets = len(observer.reset_in)
    if limited_by_rlimit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3 * 1024 * 1024, resource.RLIM_INFINITY))
    acknowledged, refusal = await fill(store)
    lost_while_full = await missing(store, acknowledged)
    ballast.unlink()
    if limited_by_rlimit:
        # The kernel calls this an I/O error, after which only a restart may go on.
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await store.close()
        store = SqliteStore(folder / "fleet.db")
    after_space_came_back = await store.write(add_next_job)
    await store.close()
    store = SqliteStore(folder / "fleet.db")
    seen = {
        "acknowledged": len(acknowledged),
        "refusal": refusal,
        "index_dropped": len(observer.reset_in) > known_resets,
        "lost_while_full": lost_while_full,
        "lost_after_restart": await missing(store, [*acknowledged, after_space_came_back]),
        "chain_problems": await problems(store),
    }
    await store.close()
    return seen


if __name__ == "__main__":
    print(json.dumps(asyncio.run(story(Path(sys.argv[1]), limited_by_rlimit=sys.argv[2] == "rlimit"))))
