"""Jobs that ended long ago lose their logs, metrics, checkpoints and artifacts, and nothing else."""

from pathlib import Path

import pytest

from simpletuner_fleet.blobs.folder import FolderBlobs
from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.ports import MARK, Blobs
from simpletuner_fleet.storage.sweeping import retention
from simpletuner_fleet.storage.sweeping.retention import (
    DAY_S,
    empty_old_jobs_once,
    remove_files_of_deleted_jobs,
)
from tests.http.api_kit import Agent, Running, orchestrator
from tests.http.upload_kit import STATE, Uploader, uploading
from tests.storage.sweeping.swept import swept

GRACE_S = 60.0


@pytest.fixture(params=["memory", "folder"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    return MemoryBlobs() if request.param == "memory" else FolderBlobs(tmp_path / "blobs")


async def ended_job(running: Running, agent: Agent) -> Uploader:
    """With a checkpoint, a log and a metric."""
    await running.submit()
    up = Uploader(agent, await agent.take())
    await up.checkpoint(10)
    attempt_id = up.offer["attempt_id"]
    for key in (
        f"logs/{attempt_id}",
        f"logs/{attempt_id}.r1",
        f"logs/{attempt_id}.r1.times",
        f"metrics/{attempt_id}/loss",
    ):
        await running.deps.blobs.append(key, 0, b"12345678")
    await up.agent.report(up.offer, "completed", exit_code=0)
    return up


async def blobs_of(running: Running, up: Uploader) -> list[str]:
    attempt_id = up.offer["attempt_id"]
    names = [name for name in await running.deps.blobs.names("logs") if name.startswith(attempt_id)]
    return names + [name for name in await running.deps.blobs.names("metrics") if name == attempt_id]


async def manifests_of(running: Running, up: Uploader) -> int:
    return len((await running.get(f"/api/jobs/{up.offer['job_id']}/artifacts"))["manifests"])


async def test_only_what_is_large_of_old_jobs_goes_and_it_is_written_down_once(blobs: Blobs) -> None:
    policy = Policy(jobs_keep_days=2.0, object_grace_s=GRACE_S)
    async with orchestrator(policy=policy, blobs=blobs) as running:
        agent = await running.worker("gpu-1")
        old = await ended_job(running, agent)
        running.clock.at += 1.5 * DAY_S
        young = await ended_job(running, agent)
        assert await empty_old_jobs_once(running.deps.storage) == 0
        running.clock.at += DAY_S
        assert await empty_old_jobs_once(running.deps.storage) == 1
        assert await empty_old_jobs_once(running.deps.storage) == 0
        assert (await blobs_of(running, old), await manifests_of(running, old)) == ([], 0)
        assert len(await blobs_of(running, young)) == 4
        assert await manifests_of(running, young) == 1

        job = await running.get(f"/api/jobs/{old.offer['job_id']}")
        assert job["status"] == "completed"
        events = (await running.get(f"/api/jobs/{old.offer['job_id']}/events"))["events"]
        assert [one["event_type"] for one in events].count("job.emptied") == 1
        running.clock.at += GRACE_S + 1
        assert await swept(running.deps.storage) == 0, "the young job has the same files"
        running.clock.at += DAY_S
        await swept(running.deps.storage)
        running.clock.at += GRACE_S + 1
        assert await swept(running.deps.storage) == 2
        assert [sha256 async for sha256 in blobs.objects()] == []


async def test_without_a_policy_everything_is_kept_for_ever() -> None:
    async with orchestrator() as running:
        up = await ended_job(running, await running.worker("gpu-1"))
        running.clock.at += 10_000 * DAY_S
        assert await empty_old_jobs_once(running.deps.storage) == 0
        assert await manifests_of(running, up) == 1


class Stubborn(MemoryBlobs):
    """Some of its files cannot be deleted."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.kept = ""
        self.away = False
        self._error = error

    async def delete(self, prefix: str) -> None:
        if self.away or (self.kept and self.kept in prefix):
            raise self._error
        await super().delete(prefix)

    async def mark(self, name: str = MARK) -> bytes | None:
        if self.away:
            raise StoreUnavailable("The bucket is away.")
        return await super().mark(name)


ON_A_DISK = PermissionError(1, "Operation not permitted")
IN_A_BUCKET = StoreUnavailable("The bucket refuses.")


@pytest.fixture(params=[ON_A_DISK, IN_A_BUCKET], ids=["disk", "bucket"])
def stubborn(request: pytest.FixtureRequest) -> Stubborn:
    return Stubborn(request.param)


async def test_a_file_that_cannot_be_deleted_keeps_no_later_job_from_being_emptied(
    stubborn: Stubborn, caplog: pytest.LogCaptureFixture
) -> None:
    async with orchestrator(policy=Policy(jobs_keep_days=2.0), blobs=stubborn) as running:
        agent = await running.worker("gpu-1")
        stuck, later = await ended_job(running, agent), await ended_job(running, agent)
        running.clock.at += 3 * DAY_S
        attempt_id = stuck.offer["attempt_id"]
        stubborn.kept = attempt_id
        assert await empty_old_jobs_once(running.deps.storage) == 2
        assert (await blobs_of(running, later), await manifests_of(running, later)) == ([], 0)
        assert f"logs/{attempt_id} of {stuck.offer['job_id']} cannot be deleted" in caplog.text
        assert await blobs_of(running, stuck)
        assert await empty_old_jobs_once(running.deps.storage) == 0
        assert await blobs_of(running, stuck)

        stubborn.kept = ""
        assert await empty_old_jobs_once(running.deps.storage) == 0
        assert await blobs_of(running, stuck) == []


async def test_a_file_that_cannot_be_deleted_keeps_no_other_file_of_its_job(stubborn: Stubborn) -> None:
    async with orchestrator(policy=Policy(jobs_keep_days=2.0), blobs=stubborn) as running:
        stuck = await ended_job(running, await running.worker("gpu-1"))
        running.clock.at += 3 * DAY_S
        attempt_id = stuck.offer["attempt_id"]
        stubborn.kept = f"metrics/{attempt_id}"
        assert await empty_old_jobs_once(running.deps.storage) == 1
        assert await blobs_of(running, stuck) == [attempt_id]
        stubborn.kept = ""
        await empty_old_jobs_once(running.deps.storage)
        assert await blobs_of(running, stuck) == []


async def test_while_the_bucket_is_away_no_job_is_passed() -> None:
    blobs = Stubborn(IN_A_BUCKET)
    async with orchestrator(policy=Policy(jobs_keep_days=2.0), blobs=blobs) as running:
        old = await ended_job(running, await running.worker("gpu-1"))
        running.clock.at += 3 * DAY_S
        blobs.away = True
        with pytest.raises(StoreUnavailable):
            await empty_old_jobs_once(running.deps.storage)
        assert await manifests_of(running, old) == 1
        blobs.away = False
        assert await empty_old_jobs_once(running.deps.storage) == 1
        assert await blobs_of(running, old) == []


async def test_once_many_jobs_have_files_that_cannot_be_deleted_no_further_job_is_passed(
    stubborn: Stubborn, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retention, "MOST_LEFT", 1)
    async with orchestrator(policy=Policy(jobs_keep_days=2.0), blobs=stubborn) as running:
        agent = await running.worker("gpu-1")
        ups = [await ended_job(running, agent) for _ in range(3)]
        running.clock.at += 3 * DAY_S
        stubborn.kept = "metrics/"
        assert await empty_old_jobs_once(running.deps.storage) == 1
        assert "no further job is emptied" in caplog.text
        assert sorted([await manifests_of(running, up) for up in ups]) == [0, 1, 1]
        stubborn.kept = ""
        assert await empty_old_jobs_once(running.deps.storage) == 2
        assert [await blobs_of(running, up) for up in ups] == [[], [], []]


async def test_a_file_of_a_deleted_job_that_cannot_be_deleted_keeps_no_other_jobs_files(
    stubborn: Stubborn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "JOBS_PER_ROUND", 1)
    async with orchestrator(blobs=stubborn) as running:
        agent = await running.worker("gpu-1")
        stuck, later = await ended_job(running, agent), await ended_job(running, agent)
        for up in (stuck, later):
            running.clock.at += 1
            assert (await running.http.delete(f"/api/jobs/{up.offer['job_id']}")).is_success
        stubborn.kept = stuck.offer["attempt_id"]
        assert await remove_files_of_deleted_jobs(running.deps.storage) == 1
        assert await blobs_of(running, later) == []
        assert await blobs_of(running, stuck)

        stubborn.kept = ""
        assert await remove_files_of_deleted_jobs(running.deps.storage) == 1
        assert await blobs_of(running, stuck) == []


async def test_logs_of_ranks_that_no_gpu_stands_for_go_with_the_job(blobs: Blobs) -> None:
    async with orchestrator(policy=Policy(jobs_keep_days=2.0), blobs=blobs) as running:
        old = await ended_job(running, await running.worker("gpu-1"))
        for suffix in ("", ".times", ".gap"):
            await blobs.append(f"logs/{old.offer['attempt_id']}.r200{suffix}", 0, b"12345678")
        running.clock.at += 3 * DAY_S
        assert await empty_old_jobs_once(running.deps.storage) == 1
        assert await blobs_of(running, old) == []


async def test_a_running_job_is_never_emptied() -> None:
    async with orchestrator(policy=Policy(jobs_keep_days=1.0)) as running:
        up = await uploading(running)
        await up.checkpoint(10, {"state.bin": STATE})
        running.clock.at += 30 * DAY_S
        assert await empty_old_jobs_once(running.deps.storage) == 0
        assert await manifests_of(running, up) == 1
