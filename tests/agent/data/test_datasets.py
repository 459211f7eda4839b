"""Datasets brought to a worker before a trainer starts, over real HTTP, and the cache they stay in."""

import asyncio
import hashlib
import json
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from simpletuner_fleet.agent.attempts.attempts import Attempts
from simpletuner_fleet.agent.attempts.endings import AttemptEnding, final_report
from simpletuner_fleet.agent.data import data_cache, datasets
from simpletuner_fleet.agent.data.data_cache import DataCache
from simpletuner_fleet.agent.data.datasets import Datasets, DataUnreachable, FetchProgress
from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.connecting import ShimTrust
from simpletuner_fleet.core.jobs.failure import classify
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.worker_errors import CacheFull, CacheInUse, CacheUnusable, DataFailed
from simpletuner_fleet.protocol.data import DatasetOrder
from simpletuner_fleet.protocol.messages import JobSubmit, ReportStatus
from simpletuner_fleet.trainers.registry import Registry
from tests.agent.object_server import ObjectServer
from tests.http.data_kit import manifest_of

BIG = random.Random(3).randbytes(1_500_000)
PETS = {"cats/big.png": BIG, "cats/twin.png": BIG, "dogs/größe.png": b"dog", "empty.txt": b""}
COWS = {"cow.png": b"moo" * 1000, "dog.png": b"dog"}
LIMIT = 10_000_000


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def order_of(files: dict[str, bytes]) -> DatasetOrder:
    manifest = manifest_of(files)
    total = sum(len(content) for content in set(files.values()))
    return DatasetOrder(id=sha(manifest), bytes=total, manifest_bytes=len(manifest), name="pets")


def offer(attempt: int = 1, **datasets: dict[str, bytes]) -> JobSubmit:
    words = [f"dataset://{mount}" for mount in datasets]
    return JobSubmit(
        job_id=f"j_{attempt}",
        attempt=1,
        attempt_id=f"a_{attempt}",
        epoch=attempt,
        config_name="c",
        config={"command": ["true", *words], "cwd": words[0] if words else "."},
        trainer="command",
        upload_endpoint="",
        dataloader=[{"instance_data_dir": "dataset://pets/cats"}],
        env={"DATA": "${dataset:pets}"},
        files={"extra.toml": "path = '${dataset:pets}'"},
        datasets={mount: order_of(files) for mount, files in datasets.items()},
    )


@asynccontextmanager
async def a_server(*datasets: dict[str, bytes]) -> AsyncIterator[tuple[ObjectServer, OrchestratorClient]]:
    async with ObjectServer() as server:
        for files in datasets or (PETS, COWS):
            for content in (*files.values(), manifest_of(files)):
                server.objects[sha(content)] = content
        client = OrchestratorClient(server.url, lambda: "token", None)
        try:
            yield server, client
        finally:
            await client.close()


def assert_laid_out(folder: Path, files: dict[str, bytes]) -> None:
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert names == files.keys()
    assert all((folder / path).read_bytes() == content for path, content in files.items())


def walked(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


async def bring(cache: DataCache, client: OrchestratorClient, wanted: JobSubmit) -> FetchProgress:
    fetching = FetchProgress()
    await Datasets(cache, client, patience_s=0.0).put_in_place(wanted, fetching)
    return fetching


async def test_a_dataset_is_fetched_verified_and_laid_out(tmp_path: Path) -> None:
    cache = DataCache.open(tmp_path, LIMIT)
    async with a_server() as (server, client):
        fetching = await bring(cache, client, offer(pets=PETS))
        assert (fetching.done_bytes, fetching.total_bytes) == (len(BIG) + 3, len(BIG) + 3)
        assert len(server.fetches) == 3, "the manifest, and each content once; nothing for an empty file"
    view = cache.view("a_1", "pets")
    assert_laid_out(view, PETS)
    assert (view / "cats/big.png").stat().st_mode & 0o222 == 0
    (view / "written-by-the-trainer.json").write_text("{}")
    assert cache.complete() == [order_of(PETS).id]
    assert cache.held_bytes == len(BIG) + 3


async def test_a_second_attempt_fetches_nothing(tmp_path: Path) -> None:
    cache = DataCache.open(tmp_path, LIMIT)
    async with a_server() as (server, client):
        await bring(cache, client, offer(1, pets=PETS))
        before = len(server.fetches)
        fetching = await bring(cache, client, offer(2, pets=PETS))
        assert (len(server.fetches), fetching.total_bytes) == (before, 0)
    assert_laid_out(cache.view("a_2", "pets"), PETS)


async def test_two_attempts_at_once_fetch_it_once(tmp_path: Path) -> None:
    async with a_server() as (server, client):
        brought = Datasets(DataCache.open(tmp_path, LIMIT), client)
        await asyncio.gather(*(brought.put_in_place(offer(n, pets=PETS), FetchProgress()) for n in (1, 2, 3)))
        assert len(server.fetches) == 3
        for attempt in ("a_1", "a_2", "a_3"):
            assert_laid_out(tmp_path / "views" / attempt / "pets", PETS)


async def test_a_download_cut_at_random_bytes_goes_on_where_it_was(tmp_path: Path) -> None:
    rng = random.Random(5)
    cache = DataCache.open(tmp_path, LIMIT)
    async with a_server() as (server, client):
        cuts = [rng.randrange(0, 500_000) for _ in range(6)]
        server.line = lambda: cuts.pop() if cuts else None
        fetching = FetchProgress()
        await Datasets(cache, client).put_in_place(offer(pets=PETS), fetching)
        assert fetching.done_bytes == fetching.total_bytes
        assert any(0 < offset < len(BIG) for offset in server.fetches)
    assert_laid_out(cache.view("a_1", "pets"), PETS)


async def test_what_was_fetched_before_a_restart_is_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "FETCHED_AT_ONCE", 1)
    async with a_server() as (server, client):
        cache = DataCache.open(tmp_path, LIMIT)
        small = sha(b"dog")
        held_back = server.objects.pop(small)
        with pytest.raises(DataFailed, match="cannot be fetched"):
            await bring(cache, client, offer(1, pets=PETS))
        cache.close()
        assert cache.complete() == []
        server.objects[small] = held_back
        server.fetches.clear()
        again = DataCache.open(tmp_path, LIMIT)
        await bring(again, client, offer(2, pets=PETS))
        assert len(server.fetches) == 1
        again.close()
        third = DataCache.open(tmp_path, LIMIT)
        assert third.complete() == [order_of(PETS).id]


@pytest.mark.parametrize("damage", [b"", b"x" * len(BIG), BIG + b"x"])
async def test_a_file_that_was_changed_in_the_cache_is_fetched_again(tmp_path: Path, damage: bytes) -> None:
    cache = DataCache.open(tmp_path, LIMIT)
    async with a_server() as (server, client):
        await bring(cache, client, offer(1, pets=PETS))
        victim = cache.object_path(sha(BIG))
        victim.chmod(0o600)
        victim.write_bytes(damage)
        server.fetches.clear()
        fetching = await bring(cache, client, offer(2, pets=PETS))
        assert (len(server.fetches), fetching.total_bytes) == (1, len(BIG))
    assert_laid_out(cache.view("a_2", "pets"), PETS)


async def test_a_file_that_was_only_touched_is_read_again_and_stays(tmp_path: Path) -> None:
    cache = DataCache.open(tmp_path, LIMIT)
    async with a_server() as (server, client):
        await bring(cache, client, offer(1, pets=PETS))
        os.utime(cache.object_path(sha(BIG)))
        server.fetches.clear()
        await bring(cache, client, offer(2, pets=PETS))
        assert server.fetches == []


async def test_damaged_bytes_are_fetched_again_and_given_up_in_the_end(tmp_path: Path) -> None:
    cache = DataCache.open(tmp_path, LIMIT)
    async with a_server() as (server, client):
        server.objects[sha(b"dog")] = b"cow"
        with pytest.raises(DataFailed, match="arrived damaged 3 times"):
            await bring(cache, client, offer(pets=PETS))
        server.objects[sha(b"dog")] = b"doggy"
        with pytest.raises(DataFailed, match="longer than it should be"):
            await bring(cache, client, offer(pets=PETS))


@pytest.mark.parametrize("manifest", [b"x" * 400, manifest_of({"../../escape": b"dog"})])
async def test_a_list_of_files_that_is_wrong_places_nothing(tmp_path: Path, manifest: bytes) -> None:
    cache = DataCache.open(tmp_path / "cache", LIMIT)
    wanted = offer(pets=PETS)
    async with a_server() as (server, client):
        asked = DatasetOrder(id=sha(manifest), bytes=3, manifest_bytes=len(manifest))
        wanted.datasets = {"pets": asked}
        server.objects[asked.id] = manifest
        with pytest.raises(DataFailed):
            await bring(cache, client, wanted)
    assert not any(path.name == "escape" for path in walked(tmp_path))


async def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path) -> None:
    cache = DataCache.open(tmp_path, LIMIT)
    for mount in ("../x", "", "a/b", ".."):
        with pytest.raises(CacheUnusable):
            cache.view("a_1", mount)


async def test_the_least_recently_used_goes_when_room_is_needed(tmp_path: Path) -> None:
    third = {"other.bin": b"y" * 2000}
    async with a_server(PETS, COWS, third) as (_, client):
        cache = DataCache.open(tmp_path, len(BIG) + 3000 + 3)
        clock = iter(range(10, 100))
        brought = Datasets(cache, client, clock=lambda: float(next(clock)))
        for number, files in ((1, PETS), (2, COWS), (3, PETS)):
            await brought.put_in_place(offer(number, pets=files), FetchProgress())
            await brought.release(f"a_{number}")
        assert cache.complete() == [order_of(PETS).id, order_of(COWS).id]
        await brought.put_in_place(offer(4, pets=third), FetchProgress())
        assert cache.complete() == [order_of(third).id, order_of(PETS).id]
        assert not cache.object_path(sha(COWS["cow.png"])).exists()
        assert cache.object_path(sha(b"dog")).exists(), "another dataset has it, too"
        assert cache.held_bytes == len(BIG) + 3 + 2000


async def test_what_is_in_use_is_never_let_go(tmp_path: Path) -> None:
    async with a_server() as (_, client):
        cache = DataCache.open(tmp_path, len(BIG) + 1000)
        brought = Datasets(cache, client)
        await brought.put_in_place(offer(1, pets=PETS), FetchProgress())
        with pytest.raises(CacheFull, match=r"may hold 0\.0 GB \(--data-cache-gb\)"):
            await brought.put_in_place(offer(2, pets=COWS), FetchProgress())
        assert cache.complete() == [order_of(PETS).id]
        assert_laid_out(cache.view("a_1", "pets"), PETS)
        await brought.release("a_1")
        await brought.put_in_place(offer(3, pets=COWS), FetchProgress())
        assert cache.complete() == [order_of(COWS).id]


async def test_a_full_disk_is_told_before_anything_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.disk_usage(tmp_path)
    async with a_server() as (server, client):
        cache = DataCache.open(tmp_path, LIMIT)
        monkeypatch.setattr(data_cache, "SPARE_BYTES", real.total)
        with pytest.raises(CacheFull, match="whose disk has"):
            await bring(cache, client, offer(pets=PETS))
        assert len(server.fetches) == 1, "its list of files alone"


async def test_the_start_clears_away_what_belongs_to_nothing(tmp_path: Path) -> None:
    async with a_server() as (_, client):
        cache = DataCache.open(tmp_path, LIMIT)
        await bring(cache, client, offer(1, pets=PETS))
        await bring(cache, client, offer(2, pets=PETS))
        cache.close()
        stray = cache.object_path("f" * 64)
        stray.parent.mkdir()
        for path in (stray, cache.part_path("e" * 64), tmp_path / "datasets" / "junk.json"):
            path.write_bytes(b"left over")
        again = DataCache.open(tmp_path, LIMIT)
        await Datasets(again, client).take_up([offer(2, pets=PETS)])
        assert not stray.exists()
        assert not list((tmp_path / "parts").iterdir())
        assert [folder.name for folder in (tmp_path / "views").iterdir()] == ["a_2"]
        again.close()
        small = DataCache.open(tmp_path, 10)
        assert (small.complete(), small.held_bytes) == ([], 0)


async def test_a_download_that_was_under_way_at_a_power_cut_is_read_again(tmp_path: Path) -> None:
    async with a_server() as (server, client):
        cache = DataCache.open(tmp_path, LIMIT)
        await bring(cache, client, offer(1, pets=PETS))
        cache.close()
        (tmp_path / "datasets" / f"{order_of(PETS).id}.whole").unlink()
        lost = cache.object_path(sha(b"dog"))
        lost.chmod(0o600)
        lost.write_bytes(b"\0\0\0")
        os.utime(lost, ns=(data_cache.VERIFIED_NS, data_cache.VERIFIED_NS))
        again = DataCache.open(tmp_path, LIMIT)
        assert again.complete() == []
        server.fetches.clear()
        await bring(again, client, offer(2, pets=PETS))
        assert len(server.fetches) == 1
        assert_laid_out(again.view("a_2", "pets"), PETS)


def test_two_workers_do_not_share_a_cache(tmp_path: Path) -> None:
    first = DataCache.open(tmp_path, LIMIT)
    with pytest.raises(CacheInUse):
        DataCache.open(tmp_path, LIMIT)
    first.close()
    DataCache.open(tmp_path, LIMIT).close()


def test_a_cache_without_a_limit_takes_most_of_the_disk_and_no_more(tmp_path: Path) -> None:
    limit = DataCache.open(tmp_path, None).limit_bytes
    assert 0 < limit <= min(data_cache.USUAL_LIMIT_BYTES, shutil.disk_usage(tmp_path).total)


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    async with Runner() as runner:
        yield runner


def attempts_in(runner: Runner, folder: Path, client: OrchestratorClient, data: Datasets | None) -> Attempts:
    state, registry = StateDir.open(folder), Registry.load(environment={})
    return Attempts(state, runner, registry, client, ShimTrust(), data=data)


async def test_a_trainer_is_given_the_folders_of_its_data(tmp_path: Path, runner: Runner) -> None:
    async with a_server() as (_, client):
        cache = DataCache.open(tmp_path / "cache", LIMIT)
        attempts = attempts_in(runner, tmp_path / "state", client, Datasets(cache, client))
        wanted = offer(pets=PETS)
        attempts.prepare(wanted)
        assert await attempts.preparation.put_in_place(wanted, lambda: True) is None
        launch = await attempts.preparation.launches[Turn("j_1", 1)]
        place = str(cache.view("a_1", "pets"))
        assert (launch.argv, launch.cwd, launch.env["DATA"]) == (["true", place], place, place)
        config = tmp_path / "state" / "attempts" / "a_1" / "job" / "config"
        assert json.loads((config / "multidatabackend.json").read_text()) == [
            {"instance_data_dir": f"{place}/cats"}
        ]
        assert (config / "extra.toml").read_text() == f"path = '{place}'"
        await attempts.forget(Turn("j_1", 1))
        assert not cache.view("a_1", "pets").exists()


async def ending_of(
    attempts: Attempts, wanted: JobSubmit, still: Callable[[], bool] = lambda: True
) -> AttemptEnding:
    attempts.prepare(wanted)
    ending = await attempts.preparation.put_in_place(wanted, still)
    assert ending is not None
    return ending


async def test_data_that_cannot_be_had_fails_the_job_with_a_class_of_its_own(
    tmp_path: Path, runner: Runner
) -> None:
    async with a_server(COWS) as (_, client):
        cache = DataCache.open(tmp_path / "cache", LIMIT)
        attempts = attempts_in(runner, tmp_path / "state", client, Datasets(cache, client))
        report = final_report(None, await ending_of(attempts, offer(pets=PETS)))
        assert report.status is ReportStatus.FAILED
        assert classify(None, None, None, report.error).code == "data"


async def test_a_worker_without_a_cache_says_so(tmp_path: Path, runner: Runner) -> None:
    async with a_server() as (_, client):
        ending = await ending_of(attempts_in(runner, tmp_path, client, None), offer(pets=PETS))
        assert ending.error is not None
        assert classify(None, None, None, ending.error).code == "data"


async def test_an_orchestrator_out_of_reach_gives_the_job_back(tmp_path: Path, runner: Runner) -> None:
    async with a_server() as (server, client):
        cache = DataCache.open(tmp_path / "cache", LIMIT)
        server.line = lambda: 0
        with pytest.raises(DataUnreachable):
            await bring(cache, client, offer(pets=PETS))
        attempts = attempts_in(runner, tmp_path / "state", client, Datasets(cache, client, patience_s=0.0))
        report = final_report(None, await ending_of(attempts, offer(pets=PETS)))
        assert report.status is ReportStatus.RELEASED


async def test_a_cancelled_job_stops_fetching_and_keeps_what_came(tmp_path: Path, runner: Runner) -> None:
    async with a_server() as (server, client):
        cache = DataCache.open(tmp_path / "cache", LIMIT)
        server.line = lambda: 200_000
        attempts = attempts_in(runner, tmp_path / "state", client, Datasets(cache, client))
        looks = iter([True, False])
        ending = await ending_of(attempts, offer(pets=PETS), lambda: next(looks))
        assert ending.reason == "stopped"
        await attempts.forget(Turn("j_1", 1))
        server.line = lambda: None
        await bring(cache, client, offer(2, pets=PETS))
        assert_laid_out(cache.view("a_2", "pets"), PETS)
