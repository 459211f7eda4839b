"""Checkpoints and results on their way off the worker, over real HTTP."""

import asyncio
import functools
import os
import random
import shutil
import time
from itertools import pairwise
from pathlib import Path

import pytest

from simpletuner_fleet.agent.ship.hashing import HashCache
from simpletuner_fleet.agent.ship.uploader import TRIES_WHILE_CHANGING, Uploader
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits, FoundArtifact, FoundCheckpoint
from simpletuner_fleet.trainers.contract import Paths
from simpletuner_fleet.trainers.job_trees import remove_tree
from tests.agent.object_server import ObjectServer
from tests.agent.ship.uploader_kit import (
    MEGABYTE,
    checkpoint,
    connected,
    offer,
    paths_sent,
    until,
    uploader,
)
from tests.trainers.test_job_trees import dig


async def test_a_checkpoint_is_sent_when_its_guard_is_there_and_not_before(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        sending = uploader(paths, client)
        stored: list[int] = []
        sending.on_stored = stored.append
        task = asyncio.create_task(sending.run())
        folder = checkpoint(paths, 100, complete=False, model=b"x" * 5000, optimizer=b"")
        await asyncio.sleep(0.2)
        assert server.bytes_in == 0
        (folder / ".guard").touch()
        await until(lambda: stored == [100])
        (manifest,) = server.manifests
        assert (manifest["kind"], manifest["name"], manifest["step"]) == ("checkpoint", "checkpoint-100", 100)
        assert [file["path"] for file in manifest["files"]] == [".guard", "model", "optimizer"]
        assert not task.done()
        sending.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(task, 10)
        assert sending.over.is_set()
        assert server.names == ["checkpoint-100"]


async def test_a_trainer_that_ends_during_a_look_is_not_waited_for(paths: Paths) -> None:
    """The end may come while a thread looks at the disk: the pause after that look would delay the report."""
    async with ObjectServer() as server, connected(server) as client:
        looks: list[bool] = []
        loop = asyncio.get_running_loop()

        class EndsMeanwhile(CheckpointHabits):
            def checkpoints(self, paths: Paths) -> list[FoundCheckpoint]:
                if not looks:
                    looks.append(True)
                    end = functools.partial(sending.trainer_ended, with_artifacts=True)
                    loop.call_soon_threadsafe(end)
                return super().checkpoints(paths)

        sending = Uploader(offer(), paths, EndsMeanwhile(), client, Bandwidth(), look_every_s=30.0)
        await asyncio.wait_for(sending.run(), 5)
        assert looks


async def test_every_checkpoint_is_sent_in_order_and_only_what_changed_of_the_next(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        base = random.Random(1).randbytes(3 * MEGABYTE)
        checkpoint(paths, 10, base=base)
        checkpoint(paths, 20, base=base, head=b"1" * 10)
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        await until(lambda: sending.checkpoint_step == 20)
        first = server.bytes_in
        checkpoint(paths, 30, base=base, head=b"2" * 10)
        await until(lambda: sending.checkpoint_step == 30)
        assert server.names == ["checkpoint-10", "checkpoint-20", "checkpoint-30"]
        assert server.bytes_in - first == 10
        sending.stop()
        await asyncio.wait_for(task, 10)


class Limited(CheckpointHabits):
    def keeps(self, paths: Paths, name: str) -> int | None:
        return 2 if name.endswith("-rolling") else 20


async def test_a_rolling_checkpoint_of_the_same_step_is_another_one_with_a_limit_of_its_own(
    paths: Paths,
) -> None:
    async with ObjectServer() as server, connected(server) as client:
        server.checkpoints_keep = 10
        checkpoint(paths, 10)
        rolling = checkpoint(paths, 11)
        rolling.rename(rolling.with_name("checkpoint-10-rolling"))
        sending = uploader(paths, client)
        sending.habits = Limited()
        sending.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(sending.run(), 20)
        reported = [(one["name"], one["step"], one["keep"]) for one in server.manifests]
        assert reported == [("checkpoint-10", 10, 20), ("checkpoint-10-rolling", 10, 2)]
        (note,) = server.notes
        assert (note["id"], note["kind"]) == ("checkpoints-bounded", "checkpoints_bounded")
        assert "the config keeps 20 checkpoints, this server the newest 10" in note["text"]


async def test_what_is_added_to_a_checkpoint_after_its_guard_arrives_too(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        folders = [checkpoint(paths, step) for step in (10, 20)]
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        await until(lambda: sending.checkpoint_step == 20)
        for folder in folders:
            (folder / "assets").mkdir()
            (folder / "assets" / "image_0.png").write_bytes(b"picture")
        sending.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(task, 20)
        assert server.names == ["checkpoint-10", "checkpoint-20", "checkpoint-10", "checkpoint-20"]
        for manifest in server.manifests[2:]:
            assert "assets/image_0.png" in [file["path"] for file in manifest["files"]]
        assert sending.checkpoint_step == 20


async def test_an_attempt_that_goes_on_elsewhere_sends_the_newest_alone(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        for step in (10, 20, 30):
            checkpoint(paths, step)
        sending = uploader(paths, client)
        sending.trainer_ended(with_artifacts=False)
        await asyncio.wait_for(sending.run(), 20)
        assert server.names == ["checkpoint-30"]


async def test_a_checkpoint_found_spoiled_before_it_is_stored_is_left_and_the_good_one_goes(
    paths: Paths,
) -> None:
    async with ObjectServer() as server, connected(server) as client:
        upload = uploader(paths, client)

        async def look() -> None:
            upload.spoiled_from = 60

        upload.before_stored = look
        checkpoint(paths, 40, weights=b"good")
        checkpoint(paths, 60, weights=b"spoiled")
        upload.trainer_ended(with_artifacts=False)
        await asyncio.wait_for(upload.run(), 20)
        assert server.names == ["checkpoint-40"]


async def test_the_end_brings_the_last_checkpoint_and_then_the_results(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        checkpoint(paths, 10)
        (paths.output_dir / "images").mkdir()
        (paths.output_dir / "images" / "1.png").write_bytes(b"png")
        (paths.output_dir / "model.safetensors").write_bytes(b"weights")
        (paths.output_dir / "outside").symlink_to("/etc/passwd")
        sending = uploader(paths, client)
        sending.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(sending.run(), 10)
        assert server.names == ["checkpoint-10", "output"]
        artifact = server.manifests[1]
        assert (artifact["kind"], artifact["step"]) == ("artifact", 10)
        assert [file["path"] for file in artifact["files"]] == ["images/1.png", "model.safetensors"]


async def test_an_attempt_that_goes_on_elsewhere_leaves_its_checkpoint_alone(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        checkpoint(paths, 10)
        (paths.output_dir / "half.bin").write_bytes(b"half")
        sending = uploader(paths, client)
        sending.trainer_ended(with_artifacts=False)
        await asyncio.wait_for(sending.run(), 10)
        assert server.names == ["checkpoint-10"]


async def test_an_upload_cut_at_random_bytes_arrives_whole(paths: Paths) -> None:
    rng = random.Random(7)
    async with ObjectServer() as server, connected(server) as client:
        content = rng.randbytes(5 * MEGABYTE)
        checkpoint(paths, 10, model=content, small=b"s", empty=b"")
        cuts = [rng.choice([0, 1, rng.randrange(MEGABYTE), rng.randrange(8 * MEGABYTE)]) for _ in range(25)]
        server.line = lambda: cuts.pop() if cuts else None
        sending = uploader(paths, client)
        sending.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(sending.run(), 100)
        assert not cuts
        assert content in server.objects.values()
        assert server.names == ["checkpoint-10"]
        assert server.bytes_in == len(content) + 1 + len(b"complete\n"), "no byte was sent in vain"


async def test_a_checkpoint_that_was_rotated_away_is_passed_over(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        folder = checkpoint(paths, 10, model=b"m" * (9 * MEGABYTE))

        def line() -> None:
            if server.part_sizes and folder.exists():
                shutil.rmtree(folder)
                checkpoint(paths, 20)

        server.line = line
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        await until(lambda: sending.checkpoint_step == 20)
        assert server.names == ["checkpoint-20"]
        sending.stop()
        await asyncio.wait_for(task, 10)


async def test_an_output_folder_that_was_replaced_by_a_link_is_given_up_and_said(tmp_path: Path) -> None:
    """As one does who has more room on another disk: nothing is read there, and the report goes."""
    job, roomy = tmp_path / "attempts" / "a_1" / "job", tmp_path / "roomy"
    job.mkdir(parents=True)
    roomy.mkdir()
    (job / "output").symlink_to(roomy)
    paths = Paths(attempt_dir=job, config_dir=job, output_dir=job / "output")
    checkpoint(paths, 5)
    (paths.output_dir / "model.safetensors").write_bytes(b"weights")
    async with ObjectServer() as server, connected(server) as client:
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        await until(lambda: "checkpoint-5" in sending.not_sent)
        sending.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(task, 10)
        assert (server.names, server.bytes_in) == ([], 0)
    assert sorted(sending.not_sent) == ["checkpoint-5", "output"]
    assert all("leads out of the job's folder" in why for why in sending.not_sent.values())
    assert sending.left_something


class Forgetful(CheckpointHabits):
    """Names files that are not there: of a checkpoint, and of what is left at the end."""

    def __init__(self) -> None:
        self.looks: list[float] = []

    def keeps(self, paths: Paths, name: str) -> int | None:
        self.looks.append(time.monotonic())
        return int((paths.config_dir / "gone").read_text())

    def artifacts(self, paths: Paths) -> list[FoundArtifact]:
        return [FoundArtifact("output", paths.output_dir, (paths.output_dir / "gone",))]


async def test_what_is_listed_and_never_found_is_tried_a_few_times_with_pauses_and_then_said(
    paths: Paths,
) -> None:
    checkpoint(paths, 5)
    habits = Forgetful()
    async with ObjectServer() as server, connected(server) as client:
        sending = uploader(paths, client)
        sending.habits = habits
        sending.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(sending.run(), 10)
        assert server.names == []
    assert len(habits.looks) == TRIES_WHILE_CHANGING
    assert all(after - before >= 0.02 for before, after in pairwise(habits.looks))
    assert sorted(sending.not_sent) == ["checkpoint-5", "output"]


async def test_a_stale_attempt_sends_nothing_more(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        server.refusals = [("objects", 409, "stale_attempt")]
        checkpoint(paths, 10)
        sending = uploader(paths, client)
        await asyncio.wait_for(sending.run(), 10)
        assert sending.over.is_set()
        assert (server.names, server.bytes_in) == ([], 0)


async def test_a_server_in_trouble_is_tried_again_and_what_it_refuses_is_left(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        server.refusals = [
            ("objects", 503, "database_busy"),
            ("manifests", 500, "internal"),
            ("objects/", 422, "digest_mismatch"),
        ]
        checkpoint(paths, 10)
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        await until(lambda: sending.checkpoint_step == 10)
        server.refusals = [("objects", 413, "too_large")]
        checkpoint(paths, 20)
        await until(lambda: not server.refusals)
        checkpoint(paths, 30)
        await until(lambda: sending.checkpoint_step == 30)
        assert server.names == ["checkpoint-10", "checkpoint-30"]
        sending.stop()
        await asyncio.wait_for(task, 10)


async def test_a_server_that_takes_nothing_holds_the_report_up_for_a_bounded_time(paths: Paths) -> None:
    async with ObjectServer() as server, connected(server) as client:
        server.always = (503, "store_unavailable")
        checkpoint(paths, 10)
        sending = uploader(paths, client, patience_s=0.3)
        sending.trainer_ended(with_artifacts=True)
        await asyncio.wait_for(sending.run(), 20)
        assert sending.over.is_set()
        assert sending.checkpoint_step is None


async def test_what_was_not_sent_while_the_server_was_away_is_sent_when_it_is_back(paths: Paths) -> None:
    async with ObjectServer() as server:
        pass
    async with connected(server) as client:
        checkpoint(paths, 10)
        sending = uploader(paths, client, patience_s=0.05)
        sending.trainer_ended(with_artifacts=True)
        task = asyncio.create_task(sending.run())
        await asyncio.sleep(0.8)
        assert not sending.over.is_set()
        async with server:
            await asyncio.wait_for(task, 30)
        assert server.names == ["checkpoint-10"]


async def test_memory_stays_flat_while_a_large_file_is_sent(paths: Paths) -> None:
    async with ObjectServer(keeping=False) as server, connected(server) as client:
        folder = checkpoint(paths, 10, complete=False, warm=b"w" * (20 * MEGABYTE))
        (folder / ".guard").touch()
        sending = uploader(paths, client)
        task = asyncio.create_task(sending.run())
        await until(lambda: sending.checkpoint_step == 10)
        large = checkpoint(paths, 20, complete=False)
        with (large / "large").open("wb") as file:
            file.truncate(300 * MEGABYTE)
        before, seen = resident_bytes(), [0]
        (large / ".guard").touch()

        def arrived() -> bool:
            seen.append(resident_bytes())
            return sending.checkpoint_step == 20

        await until(arrived, within_s=100)
        most = max(seen)
        assert server.bytes_in > 300 * MEGABYTE
        assert most - before < 40 * MEGABYTE, f"grew by {(most - before) / 1e6:.0f} MB"
        sending.stop()
        await asyncio.wait_for(task, 10)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_the_bandwidth_is_shared_and_kept() -> None:
    now, slept = 0.0, 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now, slept
        now += seconds
        slept += seconds

    bandwidth = Bandwidth(8.0, clock=lambda: now, sleep=sleep)
    assert bandwidth.part_bytes == 1_000_000
    for _ in range(20):
        await bandwidth.take(bandwidth.part_bytes)
    assert slept == pytest.approx(20.0, abs=0.3)
    now += 60
    before = slept
    await bandwidth.take(1_000_000)
    assert slept - before >= 0.7, "a quiet minute saves up next to nothing"


def test_a_file_is_hashed_again_only_when_it_changed(tmp_path: Path) -> None:
    file, hashes = tmp_path / "f", HashCache()
    file.write_bytes(b"one")
    first = hashes.entry(tmp_path, file)
    assert hashes.entry(tmp_path, file, interrupted=lambda: True) == first
    file.write_bytes(b"other")
    assert hashes.entry(tmp_path, file).sha256 != first.sha256


async def test_files_beyond_what_an_artifact_may_have_are_not_left_out_silently(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simpletuner_fleet.agent.ship.uploader.MOST_FILES", 10)
    for number in range(25):
        file = paths.output_dir / "many" / f"{number:02d}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(number))
    async with ObjectServer() as server, connected(server) as client:
        sending = uploader(paths, client)
        sending.trainer_ended(with_artifacts=True)
        await sending.run()
        sent = sum(len(manifest["files"]) for manifest in server.manifests)
    assert sent == 10
    assert sending.left_something
    assert "15 of its 25 files" in sending.trouble


async def test_files_that_cannot_be_stored_are_told_and_cost_nothing_else(paths: Paths) -> None:
    """Names that no page could show, gigabytes of holes, folders without end: the rest arrives, and nothing is called stored
    that is not."""
    odd = checkpoint(paths, 1, model=b"x")
    (odd / "a\nb").write_bytes(b"y")
    hollow = checkpoint(paths, 2, model=b"x")
    (hollow / "optimizer").touch()
    os.truncate(hollow / "optimizer", 100 * 2**30)
    dig(checkpoint(paths, 3) / "deep")
    checkpoint(paths, 4, model=b"z")
    (paths.output_dir / "sound.bin").write_bytes(b"sound")
    (paths.output_dir / "huge").touch()
    os.truncate(paths.output_dir / "huge", 2**42)
    try:
        async with ObjectServer() as server, connected(server) as client:
            sending = uploader(paths, client)
            sending.trainer_ended(with_artifacts=True)
            await asyncio.wait_for(sending.run(), 60)
            sent = {one["name"]: paths_sent(one) for one in server.manifests}
    finally:
        remove_tree(paths.output_dir / "checkpoint-3")
    assert sent == {
        "checkpoint-1": [".guard", "model"],
        "checkpoint-2": [".guard", "model"],
        "checkpoint-4": [".guard", "model"],
        "output": ["sound.bin"],
    }
    assert sending.left_something
    assert sorted(sending.not_sent) == ["checkpoint-1", "checkpoint-2", "checkpoint-3", "output"]
    assert "'a\\nb'" in sending.not_sent["checkpoint-1"]
    assert "holes" in sending.not_sent["checkpoint-2"]
    assert "too long" in sending.not_sent["checkpoint-3"]
    assert "at most" in sending.not_sent["output"]


async def test_ten_thousand_checkpoints_that_nobody_takes_make_no_report_that_nobody_takes(
    paths: Paths,
) -> None:
    async with ObjectServer() as server, connected(server) as client:
        sending = uploader(paths, client)
        for step in range(10_000):
            sending._give_up(f"checkpoint-{step}", "it is too large" * 100)
        for part in range(1000):
            sending._leave_out("output", f"{part} of its files cannot be stored" * 10)
        assert sending.trouble.startswith("checkpoint-0: it is too large")
        assert "more" in sending.trouble
        assert len(sending.trouble) < 10_000, "an outcome with a longer one would be refused, and lost"
        assert sum(len(why) for why in sending.not_sent.values()) < 10_001 * 600
