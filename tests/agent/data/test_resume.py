"""A checkpoint put in place before a trainer starts, over real HTTP."""

import asyncio
import hashlib
import json
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Timer
from typing import Any

import msgspec
import pytest

from simpletuner_fleet.agent.attempts.attempts import Attempts
from simpletuner_fleet.agent.attempts.endings import AttemptEnding, final_report
from simpletuner_fleet.agent.data.downloads import Downloads, DownloadStalled
from simpletuner_fleet.agent.data.resume import CheckpointFetcher, read_resume
from simpletuner_fleet.agent.guard.runner import Runner
from simpletuner_fleet.agent.state_dir import StateDir
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.agent.wire.connecting import ShimTrust
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason
from simpletuner_fleet.core.training.checkpoint import FileEntry
from simpletuner_fleet.core.worker_errors import ResumeFailed, ResumeUnreadable
from simpletuner_fleet.protocol.messages import JobSubmit, ReportStatus
from simpletuner_fleet.protocol.uploads import Resume
from simpletuner_fleet.trainers.registry import Registry
from tests.agent.object_server import ObjectServer
from tests.agent.shim_fixtures import until

WEIGHTS = random.Random(3).randbytes(2_500_000)
FILES = {"model.bin": WEIGHTS, "deep/er/state.json": b"{}", ".guard": b"complete\n", "empty": b""}


def entry(path: str, content: bytes) -> FileEntry:
    return FileEntry(path=path, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def resume() -> Resume:
    files = tuple(entry(path, content) for path, content in FILES.items())
    return Resume(
        manifest_id="m_1", step=40, name="checkpoint-40", attempt=1, worker_name="first", files=files
    )


def offer(trainer: str = "command", **changes: Any) -> JobSubmit:
    facts: dict[str, Any] = {
        "job_id": "j_1",
        "attempt": 2,
        "attempt_id": "a_2",
        "epoch": 2,
        "config_name": "c",
        "config": {"command": ["true"]} if trainer == "command" else {"--resume_from_checkpoint": "no"},
        "trainer": trainer,
        "upload_endpoint": "",
        "resume": msgspec.to_builtins(resume()),
    }
    return JobSubmit(**{**facts, **changes})


@asynccontextmanager
async def a_server() -> AsyncIterator[tuple[ObjectServer, OrchestratorClient]]:
    async with ObjectServer() as server:
        for content in FILES.values():
            server.objects[hashlib.sha256(content).hexdigest()] = content
        async with client_of(server.url) as client:
            yield server, client


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[OrchestratorClient]:
    client = OrchestratorClient(url, lambda: "token", None)
    try:
        yield client
    finally:
        await client.close()


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    async with Runner() as runner:
        yield runner


def attempts_in(runner: Runner, folder: Path, client: OrchestratorClient) -> Attempts:
    return Attempts(StateDir.open(folder), runner, Registry.load(environment={}), client, ShimTrust())


def assert_in_place(folder: Path) -> None:
    assert {path: (folder / path).read_bytes() for path in FILES} == FILES


async def test_a_checkpoint_is_fetched_whole_and_appears_at_once(tmp_path: Path) -> None:
    async with a_server() as (server, client):
        fetcher = CheckpointFetcher(client, "j_1", tmp_path / "making")
        placed = await fetcher.place(resume(), tmp_path / "output")
        assert placed == tmp_path / "output" / "checkpoint-40"
        assert_in_place(placed)
        assert not (tmp_path / "making").exists()
        assert server.fetches == [0, 0, 0], "nothing is asked for an empty file"


async def test_a_download_cut_at_random_bytes_goes_on_where_it_was(tmp_path: Path) -> None:
    rng = random.Random(5)
    async with a_server() as (server, client):
        cuts = [rng.randrange(0, 700_000) for _ in range(6)]
        server.line = lambda: cuts.pop() if cuts else None
        assert_in_place(
            await CheckpointFetcher(client, "j_1", tmp_path / "making").place(resume(), tmp_path / "out")
        )
        assert any(0 < offset < len(WEIGHTS) for offset in server.fetches)


async def test_what_this_machine_made_itself_is_not_fetched(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    for path, content in FILES.items():
        (mine / path).parent.mkdir(parents=True, exist_ok=True)
        (mine / path).write_bytes(content if path != ".guard" else b"COMPLETE\n")
    async with a_server() as (server, client):
        fetcher = CheckpointFetcher(client, "j_1", tmp_path / "making", nearby=[tmp_path / "none", mine])
        placed = await fetcher.place(resume(), tmp_path / "output")
        assert_in_place(placed)
        assert len(server.fetches) == 1, "only the file that was changed since"
    assert (placed / "model.bin").stat().st_ino == (mine / "model.bin").stat().st_ino


async def test_damaged_bytes_are_fetched_again_and_given_up_in_the_end(tmp_path: Path) -> None:
    async with a_server() as (server, client):
        sha256 = hashlib.sha256(WEIGHTS).hexdigest()
        server.objects[sha256] = b"?" * len(WEIGHTS)
        with pytest.raises(ResumeFailed, match=r"model\.bin arrived damaged 3 times"):
            await CheckpointFetcher(client, "j_1", tmp_path / "making").place(resume(), tmp_path / "output")
        assert not (tmp_path / "output").exists()


async def test_time_that_this_machine_takes_for_itself_is_no_silence_of_the_orchestrator(
    tmp_path: Path,
) -> None:
    """To read what is there already may take an hour; the first answer after it may break off."""
    sha256, now, cuts = hashlib.sha256(WEIGHTS).hexdigest(), 0.0, [0]
    async with a_server() as (server, client):
        downloads = Downloads(
            lambda sha256, offset: client.fetch_object("j_1", sha256, offset),
            patience_s=300.0,
            clock=lambda: now,
        )
        now = 3_600.0
        server.line = lambda: cuts.pop() if cuts else None
        await downloads.fetch(sha256, len(WEIGHTS), tmp_path / "file", "a file")
    assert (tmp_path / "file").read_bytes() == WEIGHTS
    assert not cuts


class Dripping:
    """Brings so many bytes of a file every ten seconds of the given clock."""

    def __init__(self, each: int, content: bytes = WEIGHTS) -> None:
        self.each, self.content, self.now = each, content, 0.0

    @asynccontextmanager
    async def open(self, sha256: str, offset: int) -> AsyncIterator[AsyncIterator[bytes]]:
        yield self.chunks(offset)

    async def chunks(self, offset: int) -> AsyncIterator[bytes]:
        for begin in range(offset, len(self.content), self.each):
            self.now += 10.0
            yield self.content[begin : begin + self.each]


async def test_a_file_that_drips_is_given_up_and_one_that_is_slow_is_not(tmp_path: Path) -> None:
    sha256, slow, drip = hashlib.sha256(WEIGHTS).hexdigest(), Dripping(10_000), Dripping(9)
    await Downloads(slow.open, clock=lambda: slow.now).fetch(sha256, len(WEIGHTS), tmp_path / "slow", "it")
    assert (tmp_path / "slow").read_bytes() == WEIGHTS
    with pytest.raises(DownloadStalled, match="only 279 bytes of it came in 310 s"):
        await Downloads(drip.open, clock=lambda: drip.now).fetch(sha256, len(WEIGHTS), tmp_path / "d", "it")


async def test_a_disk_that_takes_nothing_holds_up_nobody_but_the_download(tmp_path: Path) -> None:
    """A FIFO that nobody reads from yet is opened for writing as slowly as a file on a network disk that hangs."""
    os.mkfifo(tmp_path / "file")
    readers: list[int] = []
    rescue = Timer(10.0, lambda: readers.append(os.open(tmp_path / "file", os.O_RDONLY | os.O_NONBLOCK)))
    rescue.start()
    source = Dripping(9, b"the bytes")
    fetching = asyncio.create_task(Downloads(source.open).fetch("0" * 64, 10, tmp_path / "file", "it"))
    await until(lambda: source.now)
    rescue.cancel()
    assert not readers, "the loop stood still"
    reader = os.open(tmp_path / "file", os.O_RDONLY | os.O_NONBLOCK)
    fetching.cancel()
    await asyncio.gather(fetching, return_exceptions=True)
    os.close(reader)


async def test_a_checkpoint_that_is_gone_or_out_of_reach_is_a_failure(tmp_path: Path) -> None:
    async with a_server() as (server, client):
        server.objects.clear()
        with pytest.raises(ResumeFailed, match="cannot be fetched"):
            await CheckpointFetcher(client, "j_1", tmp_path / "making").place(resume(), tmp_path / "output")
    async with client_of("http://127.0.0.1:9") as client:
        with pytest.raises(ResumeFailed, match="could not be fetched"):
            await CheckpointFetcher(client, "j_1", tmp_path / "making", patience_s=0.0).place(
                resume(), tmp_path / "o"
            )


@pytest.mark.parametrize(
    "spoil",
    [
        lambda description: description.update(name="../checkpoint-40"),
        lambda description: description["files"][0].update(path="../../.ssh/authorized_keys"),
        lambda description: description["files"][0].update(path="/etc/passwd"),
        lambda description: description["files"][0].update(sha256="x"),
        lambda description: description["files"][0].update(size=-1),
        lambda description: description.pop("files"),
    ],
)
def test_no_description_of_a_checkpoint_leads_out_of_its_folder(
    spoil: Callable[[dict[str, Any]], None],
) -> None:
    description: dict[str, Any] = json.loads(msgspec.json.encode(resume()))
    spoil(description)
    with pytest.raises(ResumeUnreadable):
        read_resume(description)


@pytest.mark.parametrize("trainer", ["command", "demo"])
async def test_the_trainer_is_told_to_go_on_from_it(tmp_path: Path, runner: Runner, trainer: str) -> None:
    async with a_server() as (_, client):
        attempts = attempts_in(runner, tmp_path, client)
        order = offer(trainer)
        attempts.prepare(order)
        assert await attempts.preparation.put_in_place(order, lambda: True) is None
        launch = await attempts.preparation.launches[Turn("j_1", 2)]
        folder = tmp_path / "attempts" / "a_2" / "job"
        assert_in_place(folder / "output" / "checkpoint-40")
        config = json.loads((folder / "config" / "config.json").read_text())
        if trainer == "demo":
            assert config["--resume_from_checkpoint"] == "latest"
        else:
            assert launch.env["SIMPLETUNER_RESUME_FROM"] == str(folder / "output" / "checkpoint-40")


async def test_without_its_checkpoint_an_attempt_is_given_back_and_not_started(
    tmp_path: Path, runner: Runner
) -> None:
    async with a_server() as (server, client):
        server.objects.clear()
        attempts = attempts_in(runner, tmp_path, client)
        attempts.prepare(offer())
        ending = await attempts.preparation.put_in_place(offer(), lambda: True)
        assert ending is not None
        report = final_report(None, ending)
        assert report.status is ReportStatus.RELEASED
        assert report.error
        assert "cannot be fetched" in report.error


async def test_a_cancel_ends_the_fetching(tmp_path: Path, runner: Runner) -> None:
    async with client_of("http://127.0.0.1:9") as client:
        attempts = attempts_in(runner, tmp_path, client)
        attempts.prepare(offer())
        wanted = [True]
        placing = asyncio.create_task(attempts.preparation.put_in_place(offer(), lambda: wanted[0]))
        await asyncio.sleep(0.3)
        assert not placing.done()
        wanted[0] = False
        ending = await asyncio.wait_for(placing, 5)
        assert ending == AttemptEnding(reason=EndReason.STOPPED)
        assert final_report(EndReason.CANCELLED, ending).status is ReportStatus.CANCELLED
        await attempts.forget(Turn("j_1", 2))
