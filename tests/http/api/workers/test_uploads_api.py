"""Checkpoints and artifacts over the wire: sent in parts, named last, fetched again, let go in time."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.http.edge.bodies import Incoming
from simpletuner_fleet.http.edge.problems import RequestTimeout
from simpletuner_fleet.ports import Blobs, Tx
from tests.http.api_kit import Agent, Running, orchestrator
from tests.http.upload_kit import STATE, WEIGHTS, Uploader, entry, sha, uploading
from tests.storage.sweeping.swept import swept


@pytest.fixture(params=["memory", "folder"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return MemoryBlobs() if request.param == "memory" else FolderBlobs(tmp_path / "blobs")


@pytest.fixture
async def running(blobs: Blobs) -> AsyncIterator[Running]:
    async with orchestrator(blobs=blobs) as started:
        yield started


async def test_a_checkpoint_goes_up_in_parts_and_comes_back_byte_for_byte(running: Running) -> None:
    up = await uploading(running)
    assert await up.ask(WEIGHTS) == {"missing": [{"sha256": sha(WEIGHTS), "offset": 0}]}
    assert await up.put(WEIGHTS, 0, 1000) == {"next_offset": 1000, "complete": False}
    assert await up.ask(WEIGHTS) == {"missing": [{"sha256": sha(WEIGHTS), "offset": 1000}]}
    assert (await up.put(WEIGHTS, 5000, 6000))["next_offset"] == 1000, "a gap changes nothing"
    assert (await up.put(WEIGHTS, 500, 2000))["next_offset"] == 2000, "an overlap is welcome"
    assert await up.put(WEIGHTS, 2000, len(WEIGHTS)) == {"next_offset": len(WEIGHTS), "complete": True}
    assert (await up.put(WEIGHTS, 2000, len(WEIGHTS)))["complete"], "said again, after the answer was lost"
    assert await up.ask(WEIGHTS) == {"missing": []}
    files = {"unet/model.bin": WEIGHTS}
    first = await up.manifest(10, files)
    assert first["accepted"] is True
    assert await up.manifest(10, files) == first, "the same again is the same"
    artifacts = await running.get(f"/api/jobs/{up.offer['job_id']}/artifacts")
    assert [(one["name"], one["step"], one["total_bytes"]) for one in artifacts["manifests"]] == [
        ("checkpoint-10", 10, len(WEIGHTS))
    ]
    assert (await up.fetch(WEIGHTS)).content == WEIGHTS
    assert (await up.fetch(WEIGHTS, 1234)).content == WEIGHTS[1234:]
    assert (await up.fetch(WEIGHTS, len(WEIGHTS))).content == b""
    assert (await up.fetch(WEIGHTS, len(WEIGHTS) + 1)).status_code == 422


async def test_a_manifest_waits_for_all_its_files(running: Running) -> None:
    up = await uploading(running)
    await up.put(WEIGHTS, 0, 100)
    await up.send(STATE)
    files = {"model.bin": WEIGHTS, "state.bin": STATE}
    problem = await up.manifest(10, files, expect=409)
    assert (problem["code"], problem["missing"]) == ("objects_missing", [sha(WEIGHTS)])
    assert (await running.get(f"/api/jobs/{up.offer['job_id']}/artifacts"))["manifests"] == []


async def test_bytes_that_are_not_what_they_claim_are_dropped(running: Running) -> None:
    up = await uploading(running)
    lie = b"x" * len(STATE)
    answer = await up.agent.http.put(
        f"{up.base}/objects/{sha(STATE)}",
        params={"epoch": up.offer["epoch"], "offset": 0, "size": len(lie)},
        content=lie,
        headers={"Content-Type": "application/octet-stream"},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "digest_mismatch")
    assert (await up.ask(STATE))["missing"][0]["offset"] == 0
    await up.send(STATE)


async def test_an_empty_file_is_sent_with_an_empty_part(running: Running) -> None:
    up = await uploading(running)
    await up.checkpoint(1, {"empty": b"", "state": STATE})
    assert (await up.fetch(b"")).content == b""


async def test_nothing_of_an_attempt_that_is_no_longer_the_job_s_is_taken(running: Running) -> None:
    up = await uploading(running)
    kept = await up.checkpoint(10)
    await up.agent.close_stream()
    await running.pass_time(200)
    for problem in (
        await up.ask(WEIGHTS, expect=409),
        await up.put(b"late", 0, 4, expect=409),
        await up.manifest(20, {"state.bin": STATE}, expect=409),
        (await up.fetch(STATE)).json(),
    ):
        assert problem["code"] == "stale_attempt"
    other = await running.worker("gpu-2")
    again = Uploader(other, await other.take())
    assert again.offer["resume"]["manifest_id"] == kept
    assert (await again.fetch(STATE)).content == STATE
    assert (await up.manifest(20, {"state.bin": STATE}, expect=409))["code"] == "stale_attempt"
    assert (await up.fetch(STATE)).status_code == 409


async def test_the_next_attempt_goes_on_from_the_newest_checkpoint_and_the_job_says_so(
    running: Running,
) -> None:
    up = await uploading(running)
    job_id = up.offer["job_id"]
    assert up.offer["resume"] is None
    await up.checkpoint(500)
    newest = await up.checkpoint(1000)
    assert (await running.job(job_id))["checkpoint_step"] == 1000
    await up.agent.close_stream()
    await running.pass_time(200)
    assert (await running.job(job_id))["checkpoint_step"] == 1000, "while it waits, too"
    other = await running.worker("gpu-3")
    offer = await other.take()
    files = [
        entry("model.bin", WEIGHTS + b"1000"),
        entry("state.bin", STATE),
    ]
    assert offer["resume"] == {
        "manifest_id": newest,
        "step": 1000,
        "name": "checkpoint-1000",
        "attempt": 1,
        "worker_name": "gpu-1",
        "files": files,
    }
    job = await running.job(job_id)
    assert (job["resumed"], job["checkpoint_step"]) == ("attempt 2, resumed from step 1,000 on gpu-3", 1000)
    first, second = (await running.get(f"/api/jobs/{job_id}/attempts"))["attempts"]
    assert (first["resumed_from_step"], first["checkpoint_step"]) == (None, 1000)
    assert (second["resumed_from_step"], second["resumed_manifest"]) == (1000, newest)
    assert second["resumed"] == "attempt 2, resumed from step 1,000 on gpu-3"
    again = Uploader(other, offer)
    await again.checkpoint(1500)
    assert (await running.job(job_id))["checkpoint_step"] == 1500


async def test_steps_do_not_go_backwards_within_an_attempt(running: Running) -> None:
    up = await uploading(running)
    await up.checkpoint(20)
    await up.send(STATE)
    assert (await up.manifest(10, {"s": STATE}, expect=409))["code"] == "step_backwards"
    await up.manifest(20, {"s": STATE})


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../b", "a\\b", "a//b"])
async def test_a_path_that_leads_elsewhere_is_refused(running: Running, path: str) -> None:
    up = await uploading(running)
    await up.send(STATE)
    problem = await up.manifest(1, {path: STATE}, expect=422)
    assert problem["errors"][0]["path"] == "$.manifest.files[0].path"


async def test_knowing_a_hash_gives_nobody_the_bytes(running: Running) -> None:
    up = await uploading(running)
    await up.checkpoint(1, {"secret": WEIGHTS})
    thief = await uploading(running, "gpu-2")
    assert (await thief.ask(WEIGHTS))["missing"] == [{"sha256": sha(WEIGHTS), "offset": 0}]
    assert (await thief.manifest(1, {"mine": WEIGHTS}, expect=409))["code"] == "objects_missing"
    assert (await thief.fetch(WEIGHTS)).status_code == 404
    strange = Uploader(thief.agent, up.offer)
    assert (await strange.fetch(WEIGHTS)).status_code == 409
    assert (await strange.put(STATE, 0, 3, expect=409))["code"] == "stale_attempt"


async def test_an_attempt_s_own_token_opens_that_attempt_alone(running: Running) -> None:
    up = await uploading(running)
    stranger = Agent(running, await running.create_worker("gpu-9"))
    stranger.http.headers.pop("X-Worker-Token")
    token = {"X-Upload-Token": up.offer["upload_token"]}
    shim = Uploader(stranger, up.offer, token)
    await shim.checkpoint(3)
    assert (await shim.fetch(STATE)).content == STATE
    other = await uploading(running, "gpu-2")
    assert (await Uploader(stranger, other.offer, token).ask(STATE, expect=409))["code"] == "stale_attempt"
    assert (await Uploader(stranger, other.offer, token).fetch(STATE)).status_code == 409


async def test_a_finished_attempt_may_still_send_what_it_made(running: Running) -> None:
    up = await uploading(running)
    await up.agent.report(up.offer, "completed", exit_code=0)
    await up.send(STATE)
    await up.manifest(None, {"model.bin": STATE}, kind="artifact", name="model")


async def test_sizes_counts_and_totals_are_limited() -> None:
    policy = Policy(max_object_bytes=1000, job_storage_bytes=1500, max_manifest_files=2)
    async with orchestrator(policy=policy) as running:
        up = await uploading(running)
        assert (await up.ask(b"x" * 1001, expect=413))["code"] == "too_large"
        assert (await up.put(b"x" * 1001, 0, 10, expect=413))["code"] == "too_large"
        assert (await up.ask(b"a" * 900, b"b" * 900, expect=413))["code"] == "quota_exceeded"
        await up.send(b"a" * 900)
        assert (await up.put(b"b" * 900, 0, 10, expect=413))["code"] == "quota_exceeded"
        assert (await up.ask(b"1", b"2", b"3", expect=413))["code"] == "too_large"
        await up.put(b"c" * 500, 0, 400)
        assert (await up.put(b"d" * 500, 0, 400, expect=413))["code"] == "quota_exceeded"


async def test_parts_beyond_the_size_and_names_that_are_no_hash_are_refused(running: Running) -> None:
    up = await uploading(running)
    assert (await up.put(STATE, 0, len(STATE), expect=422, size=3))["code"] == "invalid"
    answer = await up.agent.http.put(
        f"{up.base}/objects/{'z' * 64}",
        params={"epoch": up.offer["epoch"], "offset": 0, "size": 3},
        content=b"abc",
        headers={"Content-Type": "application/octet-stream"},
    )
    assert answer.status_code == 422


async def test_people_fetch_files_ranges_and_archives(running: Running) -> None:
    up = await uploading(running)
    files = {"unet/größe 1.bin": WEIGHTS, "state.bin": STATE, "empty": b""}
    manifest_id = await up.checkpoint(7, files)
    base = f"/api/jobs/{up.offer['job_id']}/artifacts/{manifest_id}"
    whole = await running.http.get(f"{base}/files/unet/gr%C3%B6%C3%9Fe%201.bin")
    assert (whole.status_code, whole.content) == (200, WEIGHTS)
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert whole.headers["content-disposition"].startswith("attachment;")
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["etag"] == f'"{sha(WEIGHTS)}"'
    for asked, wanted in (
        ("bytes=10-19", WEIGHTS[10:20]),
        ("bytes=25590-", WEIGHTS[25590:]),
        ("bytes=-7", WEIGHTS[-7:]),
        ("bytes=25590-99999999", WEIGHTS[25590:]),
    ):
        part = await running.http.get(f"{base}/files/unet/gr%C3%B6%C3%9Fe%201.bin", headers={"Range": asked})
        assert (part.status_code, part.content) == (206, wanted), asked
        assert part.headers["content-range"].endswith(f"/{len(WEIGHTS)}")
    for asked in ("bytes=25600-", "bytes=9-3"):
        beyond = await running.http.get(
            f"{base}/files/unet/gr%C3%B6%C3%9Fe%201.bin", headers={"Range": asked}
        )
        assert beyond.status_code == 416
    stale = {"Range": "bytes=1-2", "If-Range": '"other"'}
    assert (await running.http.get(f"{base}/files/state.bin", headers=stale)).content == STATE
    archive = await running.http.get(f"{base}/archive")
    with tarfile.open(fileobj=io.BytesIO(archive.content)) as tar:
        members = {one.name: content.read() for one in tar.getmembers() if (content := tar.extractfile(one))}
    assert members == {f"checkpoint-7/{path}": data for path, data in files.items()}


async def test_what_is_not_in_the_manifest_cannot_be_fetched(running: Running) -> None:
    up = await uploading(running)
    manifest_id = await up.checkpoint(7)
    job_id = up.offer["job_id"]
    other = await running.submit()
    for path in (
        f"{job_id}/artifacts/{manifest_id}/files/none",
        f"{job_id}/artifacts/{manifest_id}/files/..%2f..%2fetc%2fpasswd",
        f"{job_id}/artifacts/{manifest_id}/files/model.bin/x",
        f"{job_id}/artifacts/{manifest_id}/files/",
        f"{job_id}/artifacts/m_none/archive",
        f"{other['job_id']}/artifacts/{manifest_id}/archive",
        f"{other['job_id']}/artifacts/{manifest_id}/files/model.bin",
        "j_none/artifacts",
    ):
        assert (await running.http.get(f"/api/jobs/{path}")).status_code == 404, path


async def objects_stored(running: Running) -> set[str]:
    return {sha256 async for sha256 in running.deps.blobs.objects()}


async def test_retention_keeps_what_the_config_asks_for_and_the_sweep_takes_the_rest_after_the_grace(
    running: Running,
) -> None:
    up = await uploading(running)
    for step in (10, 20, 30, 40):
        await up.checkpoint(step, keep=3)
        running.clock.at += 1
    await up.send(b"the model")
    await up.manifest(None, {"model.bin": b"the model"}, kind="artifact", name="model")
    manifests = (await running.get(f"/api/jobs/{up.offer['job_id']}/artifacts"))["manifests"]
    assert [one["name"] for one in manifests] == ["checkpoint-20", "checkpoint-30", "checkpoint-40", "model"]
    assert await swept(running.deps.storage) == 0, "within the grace nothing goes"
    running.clock.at += running.fleet.policy.object_grace_s + 1
    assert await swept(running.deps.storage) == 1
    kept = {sha(WEIGHTS + str(step).encode()) for step in (20, 30, 40)} | {sha(STATE), sha(b"the model")}
    assert await objects_stored(running) == kept


async def test_the_checkpoint_a_running_attempt_began_from_stays_until_it_ends(running: Running) -> None:
    up = await uploading(running)
    began_from = await up.checkpoint(10)
    await up.agent.report(up.offer, "released")
    other = await running.worker("gpu-2")
    again = Uploader(other, await other.take())
    for step in (20, 30, 40, 50):
        await again.checkpoint(step, keep=3)
    manifests = (await running.get(f"/api/jobs/{up.offer['job_id']}/artifacts"))["manifests"]
    assert began_from in [one["id"] for one in manifests]
    assert len(manifests) == 4


async def test_a_file_that_two_jobs_have_goes_only_with_the_last_of_them(running: Running) -> None:
    up = await uploading(running)
    other = await uploading(running, "gpu-2")
    await up.send(STATE)
    await other.checkpoint(1, {"state.bin": STATE})
    running.clock.at += running.fleet.policy.object_grace_s + 1
    assert await swept(running.deps.storage) == 0
    assert (await other.fetch(STATE)).content == STATE
    assert (await up.manifest(1, {"s": STATE}, expect=409))["code"] == "objects_missing"


async def test_an_orphan_of_a_crash_is_swept_and_parts_of_ended_jobs_are_dropped(running: Running) -> None:
    up = await uploading(running)
    blobs, job_id = running.deps.blobs, up.offer["job_id"]
    await blobs.put_part("uploads/orphan", 0, WEIGHTS)
    assert await blobs.seal("uploads/orphan", sha(WEIGHTS), len(WEIGHTS))
    await up.put(STATE, 0, 3)
    assert await swept(running.deps.storage) == 1
    assert await blobs.names(f"uploads/{job_id}") == [sha(STATE)], "the job may still go on sending"
    await up.agent.report(up.offer, "completed")
    running.clock.at += running.fleet.policy.object_grace_s + 1
    await swept(running.deps.storage)
    assert await blobs.names(f"uploads/{job_id}") == []


async def test_a_sweep_never_takes_what_is_being_put_there(running: Running) -> None:
    """Uploads and sweeps at the same time, many times over: whatever was answered complete can be named."""
    up = await uploading(running)
    done = asyncio.Event()

    async def sweep_on() -> None:
        while not done.is_set():
            await swept(running.deps.storage)
            await asyncio.sleep(0)

    sweeper = asyncio.create_task(sweep_on())
    for step in range(30):
        data = {"model.bin": WEIGHTS + bytes([step]), "state.bin": STATE}
        await up.checkpoint(step, data)
        running.clock.at += 1
    done.set()
    await sweeper
    for one in (await running.get(f"/api/jobs/{up.offer['job_id']}/artifacts"))["manifests"]:
        for file in one["files"]:
            assert await running.deps.blobs.object_size(file["sha256"]) == file["size"]


async def test_the_last_part_sent_twice_at_once_stores_one_object(running: Running) -> None:
    up = await uploading(running)
    await up.put(WEIGHTS, 0, 1000)
    answers = await asyncio.gather(*(up.put(WEIGHTS, 1000, len(WEIGHTS)) for _ in range(5)))
    assert all(answer["complete"] for answer in answers)
    assert await objects_stored(running) == {sha(WEIGHTS)}


async def test_a_failed_commit_leaves_nothing_named(running: Running) -> None:
    up = await uploading(running)
    await up.send(STATE)

    def fails(tx: Tx) -> None:
        raise RuntimeError("for the test")

    with pytest.raises(RuntimeError):
        await running.fleet.store.write(fails)
    running.fleet.store.fail_next_commits(1)  # type: ignore[attr-defined]
    await up.manifest(1, {"s": STATE}, expect=503)
    assert (await running.get(f"/api/jobs/{up.offer['job_id']}/artifacts"))["manifests"] == []
    await up.manifest(1, {"s": STATE})


async def test_notes_are_shown_with_the_job_s_events_once(running: Running) -> None:
    up = await uploading(running)
    note = {"id": "n1", "at": 1.5, "kind": "nan_loss", "text": "the loss is NaN", "data": {"step": 7}}
    body = {"epoch": up.offer["epoch"], "notes": [note]}
    path = f"job/{up.offer['job_id']}/notes"
    assert await up.agent.call(path, body) == {"stored": 1}
    assert await up.agent.call(path, body) == {"stored": 0}
    events = await running.get(f"/api/jobs/{up.offer['job_id']}/events")
    assert [(one["attempt"], one["kind"], one["data"]) for one in events["notes"]] == [
        (1, "nan_loss", {"step": 7})
    ]
    await up.agent.call(path, {**body, "epoch": up.offer["epoch"] + 1}, expect=409)
    await up.agent.call(path, {**body, "notes": [{**note, "kind": ""}]}, expect=422)


LOST_AT_MOST = 512 * 1024
"""What the server had read of the line and not handed on when it broke."""


async def settled(up: Uploader, data: bytes) -> int:
    """How much of it has arrived, once that does not change any more."""
    offset = -1
    while (now := (await up.ask(data))["missing"][0]["offset"]) != offset:
        offset = now
        await asyncio.sleep(0.1)
    return int(offset)


@pytest.mark.parametrize("cut", [1, 1_000_000, 1_048_577, 3_999_999])
async def test_what_came_before_the_line_broke_need_not_be_sent_again(running: Running, cut: int) -> None:
    up = await uploading(running)
    data = bytes(range(256)) * 15_625
    head = (
        f"PUT {up.base}/objects/{sha(data)}?epoch={up.offer['epoch']}&offset=0&size={len(data)} HTTP/1.1\r\n"
        f"Host: 127.0.0.1\r\nX-Worker-Token: {up.agent.token}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    _, writer = await asyncio.open_connection("127.0.0.1", running.listening.port)
    writer.write(head.encode() + data[:cut])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    offset = await settled(up, data)
    assert cut - LOST_AT_MOST < offset <= cut
    assert (await up.put(data, offset, len(data)))["complete"]
    await up.manifest(1, {"model.bin": data})
    assert (await up.fetch(data)).content == data


async def test_a_large_file_that_is_known_is_answered_at_once_and_the_line_stays_good(
    running: Running,
) -> None:
    up = await uploading(running)
    data = bytes(range(256)) * 30_000
    await up.send(data)
    for _ in range(3):
        assert (await up.put(data, 0, len(data)))["complete"]
    assert await up.ask(data) == {"missing": []}


async def test_a_body_without_its_content_type_is_refused(running: Running) -> None:
    up = await uploading(running)
    query = {"epoch": up.offer["epoch"], "offset": 0, "size": len(STATE)}
    answer = await up.agent.http.put(f"{up.base}/objects/{sha(STATE)}", params=query, content=STATE)
    assert answer.status_code == 415


async def test_a_slow_body_is_kept_as_far_as_it_came_when_the_patience_ends() -> None:
    came = iter([b"a" * 10, b"b" * 5])

    async def receive() -> tuple[bytes, bool]:
        body = next(came, None)
        if body is None:
            await asyncio.sleep(60)
        return body or b"", True

    pieces: list[bytes] = []

    async def take_all() -> None:
        async for piece in Incoming(receive, None, 100, timeout_s=0.05).pieces(8):
            pieces.append(piece)  # noqa: PERF401 what came before the error counts

    with pytest.raises(RequestTimeout):
        await take_all()
    assert pieces == [b"a" * 10, b"b" * 5]


async def test_pictures_grow_as_one_artifact_and_outlive_the_attempt_that_drew_them(running: Running) -> None:
    async def show(up: Uploader, *steps: int) -> str:
        files = {
            f"validation_images/step_{step}.png": f"{up.offer['epoch']} {step}".encode() for step in steps
        }
        await up.send(*files.values())
        answer = await up.manifest(None, files, kind="artifact", name="samples")
        return str(answer["manifest_id"])

    async def shown() -> list[str]:
        (only,) = (await running.get(f"/api/jobs/{first.offer['job_id']}/artifacts"))["manifests"]
        return [file["path"].rpartition("_")[2] for file in only["files"]]

    first = await uploading(running)
    await show(first, 1)
    newest = await show(first, 1, 2)
    assert await show(first, 1, 2) == newest, "said again, it is the same"
    for step in range(3, 20):
        await show(first, step - 1, step)
    assert len(await shown()) == 19, "what the trainer has removed meanwhile stays"
    await first.agent.report(first.offer, "released", error="going")
    await first.agent.heartbeat()
    second = Uploader(first.agent, await first.agent.take())
    again = await show(second, 19)
    assert await show(second, 19) == again
    assert sorted(await shown()) == sorted(f"{step}.png" for step in range(1, 20))
