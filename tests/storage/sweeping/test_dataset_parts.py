"""Unfinished uploads for datasets: nobody says that they will not be finished, so the sweep sees it by their size."""

from simpletuner_fleet.storage.storage import Storage
from simpletuner_fleet.storage.uploads.datasets import DATASET_PARTS, drop_abandoned_dataset_parts
from tests.http.api_kit import Running, orchestrator

GRACE_S = 3600.0
LEFT, GROWS = f"{DATASET_PARTS}/u_1/left", f"{DATASET_PARTS}/u_1/grows"


async def round_of_a_new_server(running: Running) -> list[str]:
    storage = Storage(running.fleet, running.deps.blobs)
    await drop_abandoned_dataset_parts(storage, running.clock.now() - GRACE_S)
    return await running.deps.blobs.names(f"{DATASET_PARTS}/u_1")


async def test_what_does_not_grow_any_more_goes_though_the_server_starts_anew_between_all_rounds() -> None:
    async with orchestrator() as running:
        blobs = running.deps.blobs
        await blobs.put_part(LEFT, 0, b"some")
        await blobs.put_part(GROWS, 0, b"some")
        assert await round_of_a_new_server(running) == ["grows", "left"]
        running.clock.at += GRACE_S
        assert await round_of_a_new_server(running) == ["grows", "left"]
        await blobs.put_part(GROWS, 4, b" more")
        running.clock.at += 1
        assert await round_of_a_new_server(running) == ["grows"]
        running.clock.at += GRACE_S
        assert await round_of_a_new_server(running) == ["grows"], "it has grown since"
        running.clock.at += 1
        assert await round_of_a_new_server(running) == []
        assert await blobs.names("sweep") == []


async def test_what_cannot_be_read_of_earlier_rounds_costs_time_and_no_part() -> None:
    async with orchestrator() as running:
        await running.deps.blobs.put_part(LEFT, 0, b"some")
        await running.deps.blobs.append("sweep/unfinished-parts.json", 0, b"\xff{")
        assert await round_of_a_new_server(running) == ["left"]
        running.clock.at += GRACE_S + 1
        assert await round_of_a_new_server(running) == []
