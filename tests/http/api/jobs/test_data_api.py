"""Datasets through the API: pushed, named by jobs, fetched by the workers that run them, let go."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.core.policy import Policy
from tests.http.api_kit import CPU_CONFIG, Running, orchestrator
from tests.http.data_kit import PETS, ask, dataset_id, manifest_of, name, push, put
from tests.http.upload_kit import sha
from tests.storage.sweeping.swept import swept

CACHE: dict[str, Any] = {"data": {"datasets": [], "bytes": 0, "limit_bytes": 10**9}}
CAT, DOG = PETS["cats/1.png"], PETS["dogs/größe.png"]


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    async with orchestrator() as up:
        yield up


def training(**datasets: str) -> dict[str, Any]:
    """A config that uses each of its datasets."""
    words = [f"dataset://{mount}" for mount in datasets]
    return {**CPU_CONFIG, "settings": {"command": ["true", *words]}, "datasets": datasets}


async def test_a_folder_is_pushed_once_and_has_the_id_of_its_content(running: Running) -> None:
    pets = await push(running.http, PETS)
    assert pets == dataset_id(PETS)
    (listed,) = (await running.get("/api/data"))["datasets"]
    assert (listed["id"], listed["name"], listed["files"]) == (pets, "pets", 4)
    assert listed["total_bytes"] == len(CAT) + len(DOG)
    assert (await ask(running.http, *PETS.values())).json() == {"missing": []}


async def test_a_push_goes_on_at_the_byte_where_it_broke_off(running: Running) -> None:
    assert (await put(running.http, CAT, 0, 1000)).json() == {"next_offset": 1000, "complete": False}
    (missing,) = (await ask(running.http, CAT)).json()["missing"]
    assert missing == {"sha256": sha(CAT), "offset": 1000}
    assert (await put(running.http, CAT, 2000, 3000)).json() == {"next_offset": 1000, "complete": False}
    assert (await put(running.http, CAT, 1000, 3000)).json()["complete"]
    assert (await put(running.http, CAT, 0, 3000)).json()["complete"]


async def test_a_dataset_is_named_only_when_every_byte_is_there(running: Running) -> None:
    problem = (await name(running.http, PETS)).json()
    assert (problem["code"], problem["missing"]) == (
        "objects_missing",
        [dataset_id(PETS).removeprefix("sha256:")],
    )
    manifest = manifest_of(PETS)
    await put(running.http, manifest, 0, len(manifest))
    await put(running.http, CAT, 0, len(CAT))
    answer = await name(running.http, PETS)
    assert (answer.status_code, answer.json()["count"]) == (409, 2)
    assert (await running.get("/api/data"))["datasets"] == []


async def test_bytes_that_are_not_what_they_claim_are_dropped(running: Running) -> None:
    answer = await running.http.put(
        f"/api/data/objects/{sha(DOG)}",
        params={"offset": 0, "size": 3},
        content=b"cow",
        headers={"Content-Type": "application/octet-stream"},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "digest_mismatch")
    assert (await ask(running.http, DOG)).json()["missing"][0]["offset"] == 0


@pytest.mark.parametrize(
    "manifest", [b"{}", b"junk", manifest_of({"../x": b"x"}), manifest_of(PETS) + b"\n", manifest_of({})]
)
async def test_a_manifest_that_makes_no_sense_is_refused(running: Running, manifest: bytes) -> None:
    await put(running.http, manifest, 0, len(manifest))
    answer = await running.http.post("/api/data", json={"id": f"sha256:{sha(manifest)}", "name": "x"})
    assert answer.status_code == 422, answer.text


async def test_pushing_the_same_again_renames_it(running: Running) -> None:
    await push(running.http, PETS)
    await push(running.http, PETS, "animals")
    assert [each["name"] for each in (await running.get("/api/data"))["datasets"]] == ["animals"]


async def test_a_dataset_is_read_back_whole_or_in_ranges(running: Running) -> None:
    pets = await push(running.http, PETS)
    details = await running.get(f"/api/data/{pets}")
    answer = await running.http.get(details["manifest"])
    assert answer.content == manifest_of(PETS)
    assert details["workers"] == []
    at = f"/api/data/{pets}/objects/{sha(CAT)}"
    part = await running.http.get(at, headers={"Range": "bytes=2990-"})
    assert (part.status_code, part.content) == (206, CAT[2990:])
    other = await running.http.get(f"/api/data/{pets}/objects/{sha(b'other')}")
    assert other.status_code == 404
    assert (await running.http.get("/api/data/pets")).status_code == 422
    assert (await running.http.get(f"/api/data/sha256:{'0' * 64}")).status_code == 404


async def test_reading_and_writing_are_two_permissions(running: Running) -> None:
    pets = await push(running.http, PETS)
    async with running.as_user(await running.token("data.read")) as reader:
        assert (await reader.get(f"/api/data/{pets}")).status_code == 200
        assert (await ask(reader, CAT)).status_code == 403
        assert (await reader.delete(f"/api/data/{pets}")).status_code == 403
    async with running.as_user(await running.token("data.write", name="w")) as writer:
        assert (await writer.get("/api/data")).status_code == 403
        assert (await ask(writer, CAT)).status_code == 200


async def test_two_people_do_not_write_into_each_others_upload(running: Running) -> None:
    async with running.as_user(await running.token("data.write")) as other:
        await other.put(
            f"/api/data/objects/{sha(CAT)}",
            params={"offset": 0, "size": len(CAT)},
            content=b"x" * 500,
            headers={"Content-Type": "application/octet-stream"},
        )
    assert (await ask(running.http, CAT)).json()["missing"][0]["offset"] == 0
    assert (await put(running.http, CAT, 0, len(CAT))).json()["complete"]


async def test_all_datasets_together_have_a_limit() -> None:
    async with orchestrator(policy=Policy(data_storage_bytes=4000)) as running:
        assert (await put(running.http, CAT, 0, len(CAT))).json()["complete"]
        big = b"y" * 1001
        for answer in (await ask(running.http, big), await put(running.http, big, 0, 1001)):
            assert (answer.status_code, answer.json()["code"]) == (413, "quota_exceeded")
            assert "SIMPLETUNER_DATA_STORAGE_GB" in answer.json()["next"]


@pytest.mark.parametrize(
    ("config", "path"),
    [
        (training(pets="sha256:" + "0" * 64), "$.datasets.pets"),
        (training(pets="pets"), "$.datasets.pets"),
        ({**training(), "settings": {"command": ["x", "dataset://pets"]}}, "$.datasets"),
        ({**training(), "dataloader": [{"instance_data_dir": "${dataset:pets}"}]}, "$.datasets"),
    ],
)
async def test_a_job_that_names_no_dataset_of_ours_is_told_what_to_do(
    running: Running, config: dict[str, Any], path: str
) -> None:
    answer = await running.http.post("/api/queue/submit", json={"config": config})
    problem = answer.json()
    assert (answer.status_code, problem["errors"][0]["path"]) == (422, path)
    assert "simpletuner data push" in problem["next"]


async def test_a_job_brings_its_datasets_to_the_worker_that_runs_it(running: Running) -> None:
    pets = await push(running.http, PETS)
    agent = await running.worker("gpu-1", **CACHE)
    other = await running.worker("gpu-2", **CACHE)
    job = await running.post(
        "/api/queue/submit", {"config": training(pets=pets), "worker_labels": {}, "target": "worker"}
    )
    runner = agent if job["allocated_worker_id"] == agent.id else other
    bystander = other if runner is agent else agent
    offer = await runner.take()
    bare = pets.removeprefix("sha256:")
    assert offer["datasets"] == {
        "pets": {
            "id": bare,
            "name": "pets",
            "bytes": len(CAT) + len(DOG),
            "manifest_bytes": len(manifest_of(PETS)),
        }
    }
    base = f"/api/workers/job/{job['job_id']}/data"
    assert (await runner.http.get(f"{base}/{bare}")).content == manifest_of(PETS)
    assert (await runner.http.get(f"{base}/{sha(CAT)}", params={"offset": 2999})).content == CAT[2999:]
    assert (await runner.http.get(f"{base}/{sha(b'no')}")).status_code == 404
    assert (await runner.http.get(f"{base}/{sha(CAT)}", params={"offset": 3001})).status_code == 422
    assert (await bystander.http.get(f"{base}/{sha(CAT)}")).status_code == 409


async def test_a_worker_fetches_only_what_its_own_job_names(running: Running) -> None:
    pets, cows = await push(running.http, PETS), await push(running.http, {"cow": b"moo"}, "cows")
    agent = await running.worker("gpu-1", **CACHE)
    job = await running.post("/api/queue/submit", {"config": training(pets=pets), "target": "worker"})
    await agent.take()
    base = f"/api/workers/job/{job['job_id']}/data"
    assert (await agent.http.get(f"{base}/{cows.removeprefix('sha256:')}")).status_code == 404
    assert (await agent.http.get(f"{base}/{sha(b'moo')}")).status_code == 404
    await running.post(f"/api/jobs/{job['job_id']}/cancel")
    await agent.http.post(
        f"/api/workers/job/{job['job_id']}/status", json={"status": "cancelled", "epoch": 1}
    )
    assert (await agent.http.get(f"{base}/{sha(CAT)}")).status_code == 409


async def test_datasets_can_be_given_at_submission(running: Running) -> None:
    pets = await push(running.http, PETS)
    config = {**CPU_CONFIG, "settings": {"command": ["true", "${dataset:pets}"]}}
    job = await running.post("/api/queue/submit", {"config": config, "datasets": {"pets": pets}})
    seen = await running.get(f"/api/jobs/{job['job_id']}")
    assert seen["requires"]["datasets"] == {pets: len(CAT) + len(DOG)}


async def test_a_job_goes_to_the_worker_that_has_the_data(running: Running) -> None:
    pets = await push(running.http, PETS)
    bare = pets.removeprefix("sha256:")
    for at in range(3):
        await running.worker(f"empty-{at}", **CACHE)
    holder = await running.worker("holder", data={"datasets": [bare], "bytes": 7, "limit_bytes": 10**9})
    job = await running.post("/api/queue/submit", {"config": training(pets=pets), "target": "worker"})
    assert job["allocated_worker_id"] == holder.id
    assert (await running.get(f"/api/data/{pets}"))["workers"] == ["holder"]
    shown = await running.get(f"/api/admin/workers/{holder.id}")
    assert (shown["datasets"], shown["data_bytes"], shown["data_limit_bytes"]) == ([pets], 7, 10**9)
    second = await running.post("/api/queue/submit", {"config": training(pets=pets), "target": "worker"})
    assert second["allocated_worker_id"] not in (None, holder.id)


async def test_a_heartbeat_tells_what_changed_in_the_cache(running: Running) -> None:
    pets = await push(running.http, PETS)
    agent = await running.worker("gpu-1", **CACHE)
    held = {"datasets": [pets.removeprefix("sha256:"), "junk"], "bytes": -5, "limit_bytes": 10**9}
    await agent.http.post("/api/workers/heartbeat", json={"data": held})
    await agent.http.post("/api/workers/heartbeat", json={})
    shown = await running.get(f"/api/admin/workers/{agent.id}")
    assert (shown["datasets"], shown["data_bytes"]) == ([pets], 0)


async def test_a_job_is_never_sent_where_its_data_has_no_room(running: Running) -> None:
    pets = await push(running.http, PETS)
    await running.worker("older")
    await running.worker("small", data={"datasets": [], "limit_bytes": 100})
    job = await running.post("/api/queue/submit", {"config": training(pets=pets), "target": "worker"})
    assert job["explain"]["code"] == "DATA_TOO_LARGE"
    assert "--data-cache-gb" in job["explain"]["fixes"][0]


async def test_a_dataset_stays_while_a_job_needs_it(running: Running) -> None:
    pets = await push(running.http, PETS)
    job = await running.post("/api/queue/submit", {"config": training(pets=pets)})
    answer = await running.http.delete(f"/api/data/{pets}")
    assert (answer.status_code, answer.json()["code"]) == (409, "dataset_in_use")
    await running.post(f"/api/jobs/{job['job_id']}/cancel")
    assert (await running.http.delete(f"/api/data/{pets}")).status_code == 200
    assert (await running.http.delete(f"/api/data/{pets}")).status_code == 404
    again = await running.http.post(f"/api/jobs/{job['job_id']}/retry")
    assert (again.status_code, again.json()["errors"][0]["path"]) == (422, "$.datasets.pets")


@pytest.mark.parametrize("kind", ["memory", "folder"])
async def test_the_sweep_takes_what_no_dataset_names_and_nothing_else(kind: str, tmp_path: Path) -> None:
    blobs = FolderBlobs(tmp_path) if kind == "folder" else None
    async with orchestrator(blobs=blobs) as running:
        storage = running.deps.storage

        async def stored() -> set[str]:
            return {sha256 async for sha256 in running.deps.blobs.objects()}

        pets = await push(running.http, PETS)
        await put(running.http, b"nobody's", 0, 8)
        await put(running.http, b"half of it", 0, 4)
        await swept(storage)
        everything = {sha(data) for data in (*PETS.values(), manifest_of(PETS), b"nobody's")}
        assert await stored() == everything
        running.clock.at += 3601
        await swept(storage)
        assert await stored() == everything - {sha(b"nobody's")}
        assert (await ask(running.http, b"half of it")).json()["missing"][0]["offset"] == 0
        await running.http.delete(f"/api/data/{pets}")
        await swept(storage)
        assert await stored() == everything - {sha(b"nobody's")}
        assert await push(running.http, PETS) == pets
        running.clock.at += 3601
        await swept(storage)
        await running.http.delete(f"/api/data/{pets}")
        running.clock.at += 3601
        await swept(storage)
        assert await stored() == set()


async def test_pushing_and_deleting_is_on_record(running: Running) -> None:
    pets = await push(running.http, PETS)
    await running.http.delete(f"/api/data/{pets}")
    entries = (await running.get("/api/audit", target_type="dataset"))["entries"]
    assert [entry["event_type"] for entry in entries] == ["dataset.deleted", "dataset.added"]
    assert {entry["target_id"] for entry in entries} == {pets}


async def test_a_job_shows_how_far_its_data_is_until_the_trainer_starts(running: Running) -> None:
    pets = await push(running.http, PETS)
    agent = await running.worker("gpu-1", **CACHE)
    job = await running.post("/api/queue/submit", {"config": training(pets=pets), "target": "worker"})
    offer = await agent.take()
    phase = {"phase": "fetching data", "done_bytes": 3, "total_bytes": 8}
    await agent.report(offer, "starting", progress=phase)
    seen = await running.get(f"/api/jobs/{job['job_id']}")
    assert (seen["progress"], seen["status"]) == (phase, "running")
    await agent.report(offer, "running")
    assert (await running.get(f"/api/jobs/{job['job_id']}"))["progress"] is None
