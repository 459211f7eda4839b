"""An attempt's numbers on their way to a real orchestrator: each once, whatever happens to the file or the line."""

import asyncio
import itertools
import json
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.agent.metrics import reading_time
from simpletuner_fleet.agent.metrics.follower import MetricsFollower, MetricSources, Progress, progress_of
from simpletuner_fleet.agent.metrics.metric_files import MetricFile
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.blobs.memory import MemoryBlobs
from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.training.metrics import Point, read_bar
from simpletuner_fleet.protocol.messages import GpuSample, JobSubmit, ReportStatus, StatusReport
from simpletuner_fleet.protocol.problems import TYPE_PREFIX
from simpletuner_fleet.storage.metrics.metric_files import RECORD, metrics_folder
from simpletuner_fleet.store.memory.store import MemoryStore
from tests.agent.answering import OFFER, answering
from tests.agent.metrics.test_tensorboard import NAME, scalars
from tests.http.api_kit import Agent, Running, TurnedClock, orchestrator, until


def line(step: int, **more: Any) -> str:
    point = {"step": step, "total": 1000, "loss": 1 / step, "lr": 0.1, "time": 1_700_000_000 + step / 4}
    return json.dumps({**point, **more}) + "\n"


def write(path: Path, steps: Iterable[int], mode: str = "a", **more: Any) -> None:
    with path.open(mode) as file:
        file.writelines(line(step, **more) for step in steps)


@pytest.fixture
def sources(tmp_path: Path) -> MetricSources:
    return MetricSources(
        files=(tmp_path / "metrics.jsonl", tmp_path / "training_metrics.jsonl"),
        output_log=tmp_path / "output.log",
        sent=tmp_path / "sent.json",
    )


class Attempt:
    """One attempt of a real fleet, with its follower."""

    def __init__(self, running: Running, agent: Agent, offer: dict[str, Any]) -> None:
        self.running, self.agent = running, agent
        known = JobSubmit.__struct_fields__
        self.offer = JobSubmit(**{name: value for name, value in offer.items() if name in known})
        self.client = OrchestratorClient(running.listening.url, lambda: agent.token, None)
        self.progress_reports: list[Progress] = []

    def follower(self, sources: MetricSources, **more: Any) -> MetricsFollower:
        follower = MetricsFollower(
            self.offer, sources, self.client, look_every_s=0.02, backoff=Backoff(0.01, 0.05), **more
        )
        follower.on_progress = self._note
        return follower

    def _note(self, progress: Progress) -> StatusReport:
        self.progress_reports.append(progress)
        return StatusReport(status=ReportStatus.RUNNING, epoch=self.offer.epoch, progress=progress)

    async def steps(self, running: Running | None = None) -> list[int]:
        answer = await (running or self.running).get(f"/api/jobs/{self.offer.job_id}/metrics", points=5000)
        return [bucket["step"] for bucket in answer["series"].get("loss", [])]

    async def records(self, blobs: Any) -> list[int]:
        data = await blobs.read(f"{metrics_folder(self.offer.attempt_id)}/step", 0, 10**9)
        return [step for step, _, _ in RECORD.iter_unpack(data)]


@asynccontextmanager
async def attempt(blobs: MemoryBlobs | None = None, **more: Any) -> AsyncIterator[Attempt]:
    async with orchestrator(blobs=blobs, **more) as running:
        agent = await running.worker()
        await running.submit()
        offer = await agent.take()
        await agent.report(offer, "running")
        one = Attempt(running, agent, offer)
        try:
            yield one
        finally:
            await one.client.close()


async def test_points_arrive_while_the_file_grows_each_once(sources: MetricSources) -> None:
    blobs = MemoryBlobs()
    async with attempt(blobs) as one:
        follower = one.follower(sources)
        running = asyncio.create_task(follower.run())
        for start in range(1, 101, 10):
            write(sources.files[0], range(start, start + 10))
            await asyncio.sleep(0.01)
        write(sources.files[0], range(101, 1301))
        follower.trainer_ended()
        await asyncio.wait_for(running, 20)
        assert await one.records(blobs) == list(range(1, 1301))
        assert (await one.running.job(one.offer.job_id))["progress"]["step"] == 1300


BAR = "\rEpoch 1/1, Steps:  1%|#   | {step}/1000 [00:01<00:01,  3.27it/s, lr=0.001, loss={loss}]"


async def test_a_training_that_reports_to_nobody_has_its_curve_from_its_bars(sources: MetricSources) -> None:
    blobs = MemoryBlobs()
    async with attempt(blobs) as one:
        follower = one.follower(sources)
        running = asyncio.create_task(follower.run())
        for step in range(1, 31):
            with sources.output_log.open("a") as log:
                log.write(BAR.format(step=step, loss=1.0) + BAR.format(step=step, loss=1 / step))
            await asyncio.sleep(0.005)
        follower.trainer_ended()
        await asyncio.wait_for(running, 20)
        assert await one.steps() == list(range(1, 31))


async def test_bars_tell_no_curve_where_the_trainer_writes_its_numbers(sources: MetricSources) -> None:
    blobs = MemoryBlobs()
    async with attempt(blobs) as one:
        write(sources.files[0], range(1, 11))
        sources.output_log.write_text("".join(BAR.format(step=step, loss=9) for step in range(1, 11)))
        follower = one.follower(sources)
        follower.trainer_ended()
        await asyncio.wait_for(follower.run(), 20)
        assert await one.records(blobs) == list(range(1, 11))


async def test_points_of_tensorboard_files_arrive_beside_the_lines_and_only_once(
    sources: MetricSources,
) -> None:
    blobs = MemoryBlobs()
    sources = replace(sources, events=sources.sent.parent)
    file = sources.sent.parent / "logs" / NAME
    file.parent.mkdir()
    async with attempt(blobs) as one:
        for steps in (range(1, 11), range(11, 21)):
            follower = one.follower(sources)
            with file.open("ab") as out:
                out.writelines(scalars(step, loss=1.0) for step in steps)
            follower.trainer_ended()
            await asyncio.wait_for(follower.run(), 20)
        assert await one.records(blobs) == list(range(1, 21))
        assert (await one.running.job(one.offer.job_id))["progress"] == {"step": 20, "loss": 1.0}


async def test_a_trainer_that_ends_right_after_writing_many_numbers_has_all_of_them_told(
    sources: MetricSources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_time, "AT_ONCE_S", 0.0)
    blobs = MemoryBlobs()
    sources = replace(sources, events=sources.sent.parent)
    (sources.sent.parent / NAME).write_bytes(b"".join(scalars(step, loss=1.0) for step in range(1, 3_001)))
    async with attempt(blobs) as one:
        follower = one.follower(sources)
        follower.trainer_ended()
        await asyncio.wait_for(follower.run(), 20)
        assert await one.records(blobs) == list(range(1, 3_001))
        assert (await one.running.job(one.offer.job_id))["progress"] == {"step": 3_000, "loss": 1.0}


async def test_the_attempts_own_gpus_are_told_with_the_step_it_is_at_and_disturb_nothing(
    sources: MetricSources,
) -> None:
    now = [1_700_000_000.0]
    samples = [
        GpuSample(uuid="GPU-a", utilization=93.0, memory_used_gb=41.5, temperature_c=None, power_w=310.0),
        GpuSample(uuid="GPU-b", utilization=5.0),
        GpuSample(uuid="GPU-c"),
    ]
    async with attempt() as one:
        one.offer = replace(one.offer, gpus=["GPU-a", "GPU-c"], gpu_indices=[2, 3])
        follower = one.follower(sources, clock=lambda: now[0])
        await follower.note_gpus(samples)
        running = asyncio.create_task(follower.run())
        write(sources.files[0], range(1, 6))
        await until(lambda: one.progress_reports and one.progress_reports[-1]["step"] == 5)
        for _ in range(2):
            now[0] += 5.0
            await follower.note_gpus(samples)
        follower.trainer_ended()
        await follower.note_gpus(samples)
        await asyncio.wait_for(running, 20)
        metrics = await one.running.get(f"/api/jobs/{one.offer.job_id}/metrics", points=5000)
        assert [key for key in metrics["keys"] if key.startswith("gpu.")] == [
            "gpu.2.memory_gb",
            "gpu.2.power_w",
            "gpu.2.utilization",
        ]
        busy = metrics["series"]["gpu.2.utilization"]
        assert [(bucket["step"], bucket["last"]) for bucket in busy] == [(0, 93.0), (5, 93.0)]
        assert metrics["total"] == 5
        assert one.progress_reports[-1]["step"] == 5


async def test_a_reading_is_noted_once_and_as_of_when_it_was_read(sources: MetricSources) -> None:
    now = [1_700_000_000.0]
    async with attempt() as one:
        one.offer = replace(one.offer, gpus=["GPU-a", "GPU-b"], gpu_indices=[0, 1])
        follower = one.follower(sources, clock=lambda: now[0])
        for later_s, slow_age_s in ((0.0, 25.0), (30.0, 55.0), (30.0, 7.0)):
            now[0] += later_s
            await follower.note_gpus(
                [GpuSample(uuid="GPU-a", power_w=1.0), GpuSample(uuid="GPU-b", power_w=2.0, age_s=slow_age_s)]
            )
        noted = [json.loads(line) for line in sources.gpus.read_text().splitlines()]
        times = {
            index: [line["time"] - 1_700_000_000.0 for line in noted if f"gpu.{index}.power_w" in line]
            for index in (0, 1)
        }
        assert times == {0: [0.0, 30.0, 60.0], 1: [-25.0, 53.0]}


async def test_an_agent_that_was_restarted_sends_the_gpus_points_once(sources: MetricSources) -> None:
    now = [1_700_000_000.0]
    blobs = MemoryBlobs()
    async with attempt(blobs) as one:
        one.offer = replace(one.offer, gpus=["GPU-a"], gpu_indices=[0])
        for _ in range(3):
            follower = one.follower(sources, clock=lambda: now[0])
            await follower.note_gpus([GpuSample(uuid="GPU-a", power_w=100.0)])
            now[0] += 20.0
            follower.trainer_ended()
            await asyncio.wait_for(follower.run(), 20)
        sources.sent.with_name("gpu-metrics-sent.json").unlink()
        follower = one.follower(sources)
        follower.trainer_ended()
        await asyncio.wait_for(follower.run(), 20)
        key = f"metrics/{one.offer.attempt_id}.gpus/gpu.0.power_w"
        records = RECORD.iter_unpack(await blobs.read(key, 0, 10**6))
        assert [at for _, at, _ in records] == [1_700_000_000.0 + 20 * turn for turn in range(3)]


async def test_a_step_of_the_clock_ends_no_patience(sources: MetricSources) -> None:
    days, tries = itertools.count(), []

    def refuse() -> tuple[HTTPStatus, Any]:
        tries.append(1)
        code, status = StoreUnavailable.code, HTTPStatus.SERVICE_UNAVAILABLE
        return status, {"type": TYPE_PREFIX + code, "code": code, "status": status}

    write(sources.files[0], range(1, 6))
    async with answering(refuse) as client:
        follower = MetricsFollower(
            OFFER, sources, client, backoff=Backoff(0.001, 0.002), clock=lambda: next(days) * 86_400.0
        )
        follower.trainer_ended()
        running = asyncio.create_task(follower.run())
        await until(lambda: len(tries) > 5)
        assert not follower.over.is_set()
        follower.stop()
        await asyncio.wait_for(running, 10)


async def test_a_line_half_written_waits_for_its_end(sources: MetricSources) -> None:
    async with attempt() as one:
        follower = one.follower(sources)
        running = asyncio.create_task(follower.run())
        whole = line(7)
        sources.files[0].write_text(line(6) + whole[:10])
        await until(lambda: _has(one, [6]))
        await asyncio.sleep(0.06)
        with sources.files[0].open("a") as file:
            file.write(whole[10:] + "no json\n" + line(8))
        await until(lambda: _has(one, [6, 7, 8]))
        follower.trainer_ended()
        await asyncio.wait_for(running, 20)


async def _has(one: Attempt, steps: list[int]) -> bool:
    return await one.steps() == steps


async def test_a_file_cut_and_written_anew_sends_only_what_is_new(sources: MetricSources) -> None:
    blobs = MemoryBlobs()
    async with attempt(blobs) as one:
        follower = one.follower(sources)
        running = asyncio.create_task(follower.run())
        write(sources.files[0], range(1, 31))
        await until(lambda: _has(one, list(range(1, 31))))
        # In one write: whoever looks while the file is shorter has to take all of it for new.
        again = [*map(line, range(1, 21)), *(line(step, loss=5.0) for step in range(21, 41))]
        with sources.files[0].open("r+") as file:
            file.write("".join(again))
        await until(lambda: _has(one, list(range(1, 41))))
        follower.trainer_ended()
        await asyncio.wait_for(running, 20)
        assert await one.records(blobs) == [*range(1, 31), *range(21, 41)]


async def test_a_new_process_goes_on_where_the_one_before_was(sources: MetricSources) -> None:
    blobs = MemoryBlobs()
    async with attempt(blobs) as one:
        for end in (50, 120):
            write(sources.files[0], range(end - 49 if end == 50 else 51, end + 1))
            follower = one.follower(sources)
            follower.trainer_ended()
            await asyncio.wait_for(follower.run(), 20)
        sources.sent.write_text("broken")
        write(sources.files[0], range(121, 131))
        follower = one.follower(sources)
        follower.trainer_ended()
        await asyncio.wait_for(follower.run(), 20)
        assert await one.records(blobs) == list(range(1, 131))


async def test_an_orchestrator_that_was_away_or_lost_points_gets_them_all(sources: MetricSources) -> None:
    store, blobs, clock, port = MemoryStore(), MemoryBlobs(), TurnedClock(), _free_port()
    async with attempt(blobs, store=store, clock=clock, port=port) as one:
        follower = one.follower(sources)
        running = asyncio.create_task(follower.run())
        write(sources.files[0], range(1, 31))
        await until(lambda: _has(one, list(range(1, 31))))
        client, one.client = one.client, OrchestratorClient("http://127.0.0.1:1", lambda: "", None)
    write(sources.files[0], range(31, 1201))
    await until(lambda: one.progress_reports[-1]["step"] == 1200)
    assert not follower.over.is_set()
    follower.trainer_ended()
    await asyncio.sleep(0.05)
    assert not follower.over.is_set()
    index = f"{metrics_folder(one.offer.attempt_id)}/step"
    kept = await blobs.read(index, 0, 10 * RECORD.size)
    await blobs.delete(index)
    await blobs.append(index, 0, kept)
    async with orchestrator(store=store, blobs=blobs, clock=clock, port=port) as again:
        await asyncio.wait_for(running, 20)
        assert await one.records(blobs) == list(range(1, 1201))
        assert await one.steps(again) == list(range(1, 1201))
    await client.close()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def test_progress_is_told_when_it_changes_and_not_otherwise(sources: MetricSources) -> None:
    async with attempt() as one:
        follower = one.follower(sources)
        running = asyncio.create_task(follower.run())
        sources.output_log.write_text("loading\rSteps:  10%|█ | 12/120 [00:30<01:30, 1.20it/s, loss=nan]\r")
        await until(lambda: bool(one.progress_reports))
        await asyncio.sleep(0.2)
        assert len(one.progress_reports) == 1
        job = await one.running.job(one.offer.job_id)
        assert job["progress"] == {"step": 12, "total": 120, "loss": "NaN", "rate": 1.2, "eta_s": 90.0}
        follower.trainer_ended()
        await asyncio.wait_for(running, 20)


async def test_what_was_written_before_a_checkpoint_can_be_sent_at_once(sources: MetricSources) -> None:
    async with attempt() as one:
        follower = MetricsFollower(one.offer, sources, one.client, look_every_s=60.0)
        running = asyncio.create_task(follower.run())
        await asyncio.sleep(0.05)
        write(sources.files[0], range(1, 11))
        await follower.flush()
        assert await one.steps() == list(range(1, 11))
        follower.trainer_ended()
        await asyncio.wait_for(running, 20)
        assert await one.steps() == list(range(1, 11))


async def test_a_stale_attempt_is_not_followed_any_more(sources: MetricSources) -> None:
    async with attempt() as one:
        follower = one.follower(sources)
        running = asyncio.create_task(follower.run())
        released = {"attempt": one.offer.attempt, "epoch": one.offer.epoch, "job_id": one.offer.job_id}
        await one.agent.report(released, "released", error="going")
        write(sources.files[0], range(1, 3))
        await asyncio.wait_for(running, 20)
        assert follower.over.is_set()


def test_the_points_tell_progress_and_a_bar_fills_in() -> None:
    bar = read_bar("Steps:  10%|█ | 12/120 [00:30<01:30, 1.20it/s, lr=0.5]")
    points = [Point(step=step, at=step / 2, values={"train_loss": 0.5}) for step in (10, 14)]
    progress = {"step": 14, "total": 120, "loss": 0.5, "lr": 0.5, "rate": 2.0, "eta_s": 53.0}
    assert progress_of(points, bar) == progress
    assert progress_of([], None) is None
    assert progress_of(points[:1], None) == {"step": 10, "loss": 0.5}


def test_a_file_is_read_in_bounded_pieces_and_a_line_without_end_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"x" * 200_000 + b"\n" + line(1).encode())
    write(path, range(2, 12))
    file, seen = MetricFile(path), []
    while (piece := file.peek(3)) and piece.fresh:
        file.take(piece)
        seen.append([point.step for point in piece.points])
    assert seen == [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11]]
    path.unlink()
    assert file.peek(3) is None
