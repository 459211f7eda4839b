"""Answers probes of whoever keeps the server running."""

import asyncio
from typing import Any, Literal

from msgspec import Struct

from simpletuner_fleet import __version__
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.http.api.deps import Deps, whole_deps
from simpletuner_fleet.http.edge.routes import PUBLIC, Call, Route
from simpletuner_fleet.storage.probe import prove_storage

TAGS = ("server",)
PROBE_SETTING = "last_probe"
PROBED_AT_MOST_EVERY_S = 2.0
STORAGE_PROBED_EVERY_S = 15.0
HANGS_AFTER_S = 60.0
"""No short read takes so long: its disk or its database does not answer, and nor does whoever reads after it."""


class LiveAnswer(Struct, kw_only=True):
    status: str = "live"
    version: str = __version__


class ReadyAnswer(Struct, kw_only=True):
    status: str = "ready"
    version: str = __version__
    role: Literal["leader"] = "leader"
    """An orchestrator that is alone leads; one that passes requests on to another says `follower`."""
    storage: Literal["ok", "low"] = "ok"
    """Low: the disk is nearly full, and uploads wait."""
    direct: Literal["on", "off"] = "off"
    """On: large files go straight to the S3 bucket. Off is no trouble: they go through this orchestrator."""


async def live(call: Call[None]) -> LiveAnswer:
    return LiveAnswer()


async def ready(call: Call[None]) -> ReadyAnswer:
    """Answers that store and storage can be read and written; if not, the answer is 503 and says which cannot."""
    deps = whole_deps(call)
    await _proof(deps)
    return ReadyAnswer(
        storage="low" if deps.space.is_low() else "ok", direct="on" if deps.storage.direct_in_use else "off"
    )


async def _proof(deps: Deps) -> None:
    """Runs the check to its end even if the caller has left: an impatient prober would otherwise never get a result."""
    if deps.proving is None or deps.proving.done():
        deps.proving = asyncio.create_task(_prove(deps))
        deps.proving.add_done_callback(_take_note)
    await asyncio.shield(deps.proving)


def _take_note(task: "asyncio.Task[Any]") -> None:
    """Takes note of how it ended, whether or not somebody still waits for it."""
    if not task.cancelled():
        task.exception()


async def _prove(deps: Deps) -> None:
    """Writes to the store and reads from it, but not for every caller: anyone may ask."""
    now = deps.fleet.clock.now()
    if deps.proven_at is not None and now - deps.proven_at < PROBED_AT_MOST_EVERY_S:
        return
    _look_for_readers_that_hang(deps)
    await deps.fleet.act(lambda transaction: _write_and_read(transaction, now))
    await _prove_storage(deps, now)
    deps.proven_at = now


def _look_for_readers_that_hang(deps: Deps) -> None:
    """Raises StoreUnavailable where one read has gone on for too long; it waits for none itself."""
    if deps.reading is None or deps.reading.done():
        deps.reading = asyncio.create_task(deps.fleet.read(lambda view: view.setting(PROBE_SETTING)))
        deps.reading.add_done_callback(_take_note)
    reading_for_s = deps.fleet.store.reading_for_s()
    if reading_for_s > HANGS_AFTER_S:
        raise StoreUnavailable(f"A read of the database has not ended for {reading_for_s:.0f} s.")


def _write_and_read(transaction: Transaction, now: float) -> str | None:
    """Reads where it writes: among the reads of people it would wait for its turn, and say nothing of the database."""
    transaction.tx.put_setting(PROBE_SETTING, repr(now))
    return transaction.tx.setting(PROBE_SETTING)


async def _prove_storage(deps: Deps, now: float) -> None:
    """Checks the storage more rarely: it may be another machine, and cost money."""
    if deps.storage_proven_at is not None and now - deps.storage_proven_at < STORAGE_PROBED_EVERY_S:
        return
    await prove_storage(deps.blobs)
    deps.storage_proven_at = now


ROUTES = [
    Route(
        "GET",
        "/health/live",
        live,
        PUBLIC,
        answer=LiveAnswer,
        summary="The process answers",
        tags=TAGS,
        prompt=True,
    ),
    Route(
        "GET",
        "/health/ready",
        ready,
        PUBLIC,
        answer=ReadyAnswer,
        summary="Database and storage can be read and written",
        tags=TAGS,
    ),
]
