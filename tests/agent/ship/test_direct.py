"""A worker's large files on their way straight to a strict bucket, and what the worker does where that fails."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from simpletuner_fleet.agent.data.resume import CheckpointFetcher
from simpletuner_fleet.agent.ship.uploader import Uploader
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.direct_connections import DirectFailed
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.core.training.direct import MIB
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.protocol.uploads import TRIED_LINK_PATH, Resume, StorageTrial
from simpletuner_fleet.storage.uploads.direct import DirectStorage
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.contract import Paths
from tests.http.api_kit import Running
from tests.http.direct_kit import LARGE, with_bucket
from tests.http.upload_kit import Uploader as UploadKit
from tests.http.upload_kit import sha, uploading
from tests.s3_gate import Gate, Seen, gate_before
from tests.s3_server import CREDENTIALS

FIVE_MIB_A_SECOND = 5 * MIB * 8 / 1e6
"""At this rate parts are as small as S3 takes them."""


@pytest.fixture(scope="module")
def shared_gate(s3_endpoint: str) -> Iterator[Gate]:
    with gate_before(s3_endpoint) as gate:
        yield gate


@pytest.fixture
def gate(shared_gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Gate:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    shared_gate.reset()
    return shared_gate


async def no_pause(seconds: float) -> None:
    await asyncio.sleep(0)


class Machine:
    """One worker with a checkpoint to send."""

    def __init__(self, running: Running, up: UploadKit, folder: Path) -> None:
        self.running, self.up = running, up
        for name in ("config", "output"):
            (folder / name).mkdir()
        self.paths = Paths(attempt_dir=folder, config_dir=folder / "config", output_dir=folder / "output")
        checkpoint = folder / "output" / "checkpoint-10"
        checkpoint.mkdir()
        (checkpoint / "model").write_bytes(LARGE)
        (checkpoint / ".guard").touch()

    @asynccontextmanager
    async def uploader(self) -> AsyncIterator[Uploader]:
        token = self.up.agent.http.headers["X-Worker-Token"]
        client = OrchestratorClient(str(self.running.listening.url), lambda: token, None)
        client.answer_timeout_s = 60.0
        try:
            yield Uploader(
                msgspec.convert(self.up.offer, JobSubmit),
                self.paths,
                CheckpointHabits(),
                client,
                Bandwidth(FIVE_MIB_A_SECOND, sleep=no_pause),
                look_every_s=0.02,
                backoff=Backoff(0.01, 0.05),
            )
        finally:
            await client.close()

    @property
    def bucket(self) -> DirectStorage:
        assert self.running.deps.direct
        return self.running.deps.direct

    async def stored(self) -> list[str]:
        answer = await self.running.get(f"/api/jobs/{self.up.offer['job_id']}/artifacts")
        return [manifest["name"] for manifest in answer["manifests"]]

    async def notes(self) -> list[str]:
        events = await self.running.get(f"/api/jobs/{self.up.offer['job_id']}/events")
        return [text for text in map(str, events["notes"]) if "storage_unreachable" in text]


@asynccontextmanager
async def machine(gate: Gate, tmp_path: Path, workers_url: str | None = None) -> AsyncIterator[Machine]:
    async with with_bucket(gate, tmp_path, workers_url) as running:
        up = await uploading(running)
        up.agent.http.timeout = httpx2.Timeout(120)
        folder = tmp_path / "machine"
        folder.mkdir()
        yield Machine(running, up, folder)


def parts_only(answer: Any) -> Any:
    return lambda seen: answer(seen) if seen.by_link and seen.is_part else None


async def test_a_checkpoint_goes_straight_to_the_bucket_and_an_agent_that_was_killed_sends_only_the_rest(
    gate: Gate, tmp_path: Path
) -> None:
    async with machine(gate, tmp_path) as at:
        killed = asyncio.Event()
        loop = asyncio.get_running_loop()

        begun: list[Seen] = []
        arrived: list[Seen] = []
        two_arrived = threading.Event()

        def note_arrival(seen: Seen) -> None:
            if seen.by_link and seen.is_part:
                arrived.append(seen)
            if len(arrived) == 2:
                two_arrived.set()

        gate.after = note_arrival

        def dies_after_two(seen: Seen) -> int | None:
            begun.append(seen)
            if len(begun) <= 2:
                return None
            assert two_arrived.wait(60)
            loop.call_soon_threadsafe(killed.set)
            return 503

        gate.before = parts_only(dies_after_two)
        async with at.uploader() as first:
            sending = asyncio.create_task(first.send_once())
            await asyncio.wait_for(killed.wait(), 60)
            sending.cancel()
            await asyncio.wait({sending})
        gate.before = lambda seen: None
        assert len(gate.parts_by_link) == 2
        async with at.uploader() as second:
            await second.send_once()
            assert second.checkpoint_step == 10
        assert len(gate.parts_by_link) == 3
        assert await at.stored() == ["checkpoint-10"]
        assert (await at.up.fetch(LARGE)).content == LARGE
        assert at.bucket.stored_files == 1


async def test_a_checkpoint_to_go_on_from_comes_from_the_bucket_and_where_that_fails_from_the_orchestrator(
    gate: Gate, tmp_path: Path
) -> None:
    async with machine(gate, tmp_path) as at, at.uploader() as uploader:
        await uploader.send_once()
        entry = FileEntry(path="model", size=len(LARGE), sha256=sha(LARGE))
        resume = Resume(
            manifest_id="m", step=10, name="checkpoint-10", attempt=1, worker_name="w", files=(entry,)
        )
        client, job_id = uploader._client, at.up.offer["job_id"]
        for way, straight in (("bucket", True), ("orchestrator", False)):
            if not straight:
                gate.before = lambda seen: 403 if seen.by_link else None
            gate.taken.clear()
            fetcher = CheckpointFetcher(client, job_id, tmp_path / f"making-{way}")
            folder = await fetcher.place(resume, tmp_path / way)
            assert (folder / "model").read_bytes() == LARGE
            assert any(seen.by_link for seen in gate.taken) is straight
            assert client.direct.is_open is straight


async def test_a_link_that_is_refused_once_is_asked_for_anew(gate: Gate, tmp_path: Path) -> None:
    async with machine(gate, tmp_path) as at, at.uploader() as uploader:
        gate.before = parts_only(lambda seen: 403 if not gate.refused else None)
        await uploader.send_once()
        assert await at.stored() == ["checkpoint-10"]
        assert (len(gate.refused), len(gate.parts_by_link)) == (1, 3)
        assert await at.notes() == []


@pytest.mark.parametrize("how", ["unreachable", "refuses"])
async def test_where_the_bucket_cannot_be_used_from_the_worker_files_go_through_the_orchestrator_and_it_says_so(
    gate: Gate, tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    nobody = "http://127.0.0.1:1" if how == "unreachable" else None
    async with machine(gate, tmp_path, nobody) as at, at.uploader() as uploader:
        gate.before = parts_only(lambda seen: 403)
        await uploader.send_once()
        assert await at.stored() == ["checkpoint-10"]
        assert gate.parts_by_link == []
        assert (await at.up.fetch(LARGE)).content == LARGE
        [note] = await at.notes()
        assert "through the orchestrator" in note
        assert at.bucket.stored_files == 0
        assert "files go through the orchestrator for 10 minutes" in caplog.text
        assert "X-Amz" not in note + caplog.text, "a link is worth what it opens"


async def test_a_file_that_changes_under_way_is_read_again(gate: Gate, tmp_path: Path) -> None:
    async with machine(gate, tmp_path) as at, at.uploader() as uploader:
        model = at.paths.output_dir / "checkpoint-10" / "model"
        changed = LARGE[: 6 * MIB] + bytes(6 * MIB)

        def change(seen: Seen) -> None:
            if "uploads" in seen.query and seen.method == "POST" and not begun:
                begun.append(seen)
                model.write_bytes(changed)

        begun: list[Seen] = []
        gate.before = change
        await uploader.send_once()
        assert await at.stored() == ["checkpoint-10"]
        assert (await at.up.fetch(changed)).content == changed


async def test_who_tries_the_bucket_sends_to_it_too_and_learns_that_it_may_not(
    gate: Gate, tmp_path: Path
) -> None:
    async with machine(gate, tmp_path) as at, at.uploader() as uploader:
        client = uploader._client
        await at.running.deps.blobs.put_mark(b"{}")
        gate.taken.clear()
        assert await client.try_storage()
        read, sent = (seen for seen in gate.taken if seen.by_link)
        assert (read.method, sent.method) == ("GET", "PUT")
        trial = await client._send("bulk", "GET", TRIED_LINK_PATH, b"", StorageTrial, {})
        signed = {name: value for name, value in trial.headers.items() if name != "content-length"}
        async with httpx2.AsyncClient() as http:
            other = await http.put(trial.send_url, headers=signed, content=bytes(3))
        assert other.status_code >= 400, "nothing else can be sent by the link"
        gate.before = lambda seen: 403 if seen.by_link and seen.method == "PUT" else None
        with pytest.raises(DirectFailed, match="403"):
            await client.try_storage()
