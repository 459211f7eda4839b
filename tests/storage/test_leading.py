"""A server that has lost its lease deletes nothing and publishes nothing, whatever it had begun."""

import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from simpletuner_fleet.blobs.leaders import LeadersBlobs
from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.errors import NotLeader, StoreUnavailable
from simpletuner_fleet.orchestrator.publishing import PUBLISHING, Places, publish_once
from simpletuner_fleet.storage.storage import DELETING
from simpletuner_fleet.storage.sweeping.sweeper import sweep_storage_once
from simpletuner_fleet.store.lease_book import PostgresLeaseBook
from simpletuner_fleet.store.postgres import PostgresStore
from tests.http.api_kit import Running, orchestrator
from tests.http.upload_kit import uploading

NOBODYS = b"nobody's"
SHA256 = hashlib.sha256(NOBODYS).hexdigest()
MODEL = {"model.safetensors": b"weights"}
TO_FOLDER = {
    "trainer": "command",
    "settings": {"command": ["true"]},
    "resources": {"gpus": 0},
    "publish": {"to": "folder://cats"},
}


class Lease:
    """Whether this server leads; `lost_at` is the look at which it finds that it does not any more."""

    def __init__(self) -> None:
        self.looks = 0
        self.lost_at: int | None = None

    def __call__(self) -> bool:
        self.looks += 1
        return self.lost_at is None or self.looks < self.lost_at


async def put_aside(running: Running, blobs: MemoryBlobs) -> None:
    """A file of nobody that is due: it stands on the list."""
    await blobs.put_part("uploads/j_1/part", 0, NOBODYS)
    assert await blobs.seal("uploads/j_1/part", SHA256, len(NOBODYS))
    running.fleet.policy = replace(running.fleet.policy, object_delete_delay_s=0.0)
    assert await sweep_storage_once(running.deps.storage) == 0


async def test_a_lease_that_ends_in_the_middle_of_a_sweep_ends_the_sweep() -> None:
    stored, lease = MemoryBlobs(), Lease()
    async with orchestrator(blobs=LeadersBlobs(stored, lease)) as running:
        await put_aside(running, stored)
        running.fleet.leads = lease
        before = lease.looks
        assert await sweep_storage_once(running.deps.storage) == 1
        takes = lease.looks - before
        assert takes >= 2, "it is looked at when the row is written and again before the file goes"
        of_the_empty_list = 2  # it and its copy go once the file is gone
        for lost_at in range(1, takes - of_the_empty_list + 1):
            await put_aside(running, stored)
            lease.lost_at = lease.looks + lost_at
            with pytest.raises(NotLeader):
                await sweep_storage_once(running.deps.storage)
            assert await stored.object_size(SHA256) == len(NOBODYS), lost_at
            lease.lost_at = None
            await sweep_storage_once(running.deps.storage)


@pytest.mark.parametrize("change", ["append", "truncate", "delete", "put_part", "seal", "put_mark"])
async def test_no_change_of_the_storage_is_made_without_a_sure_lease(change: str) -> None:
    stored, lease = MemoryBlobs(), Lease()
    await stored.append("logs/a_1", 0, b"before")
    blobs = LeadersBlobs(stored, lease)
    lease.lost_at = 0
    changes: dict[str, Callable[[], Awaitable[object]]] = {
        "append": lambda: blobs.append("logs/a_1", 6, b"!"),
        "truncate": lambda: blobs.truncate("logs/a_1", 1),
        "delete": lambda: blobs.delete("logs"),
        "put_part": lambda: blobs.put_part("logs/a_1", 6, b"!"),
        "seal": lambda: blobs.seal("logs/a_1", SHA256, 6),
        "put_mark": lambda: blobs.put_mark(b"{}"),
    }
    with pytest.raises(NotLeader):
        await changes[change]()
    assert await blobs.read("logs/a_1", 0, 10) == b"before"
    assert await blobs.mark() is None


async def test_nothing_is_published_without_a_sure_lease_and_whoever_leads_next_does_it(
    tmp_path: Path,
) -> None:
    lease = Lease()
    async with orchestrator() as running:
        up = await uploading(running, config=TO_FOLDER)
        await up.send(*MODEL.values())
        await up.manifest(None, MODEL, kind="artifact", name="output")
        await up.agent.report(up.offer, "completed", exit_code=0)
        places = Places(f"file://{tmp_path}")
        running.fleet.leads = lease
        for looks in (1, 2):
            lease.lost_at = lease.looks + looks
            with pytest.raises(NotLeader):
                await publish_once(running.deps.storage, places)
            assert not (tmp_path / "cats" / "model.safetensors").exists()
        due = await running.get(f"/api/jobs/{up.offer['job_id']}/publication")
        assert (due["state"], due["tries"]) == ("due", 0)
        lease.lost_at = None
        assert await publish_once(running.deps.storage, places) == 1
        assert (tmp_path / "cats" / "model.safetensors").read_bytes() == b"weights"


async def test_a_server_whose_term_is_over_cannot_write_the_row_that_announces_it(
    postgres_database: str,
) -> None:
    """Its clock may say that it still leads: the database knows better."""
    book = PostgresLeaseBook(postgres_database)
    book.open()
    lease = book.take(None, "a", "http://a", "")
    assert lease is not None
    store = PostgresStore(postgres_database, term=lease.term)
    stored = MemoryBlobs()
    async with orchestrator(store=store, blobs=stored) as running:
        await put_aside(running, stored)
        await running.fleet.announce(DELETING, "before")
        assert book.take(book.look(), "b", "http://b", "") is not None
        for key in (DELETING, PUBLISHING):
            with pytest.raises(StoreUnavailable):
                await running.fleet.announce(key, "after")
        with pytest.raises(StoreUnavailable):
            await sweep_storage_once(running.deps.storage)
        assert await stored.object_size(SHA256) == len(NOBODYS)
    await store.close()
    book.close()
