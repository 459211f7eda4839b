"""A trainer's output on its way to a real orchestrator: every byte once, whoever was away."""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.ship.logs.log_shipper import LogShipper, LogShippers, LogSources
from simpletuner_fleet.agent.ship.logs.log_stream import LogLimits, LogStream
from simpletuner_fleet.agent.ship.masking import Mask
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.protocol.messages import JobSubmit
from tests.http.api_kit import Agent, Running, orchestrator, until


def offered(offer: dict[str, Any]) -> JobSubmit:
    known = JobSubmit.__struct_fields__
    return JobSubmit(**{name: value for name, value in offer.items() if name in known})


class Attempt:
    def __init__(self, running: Running, agent: Agent, offer: dict[str, Any]) -> None:
        self.running = running
        self.offer = offered(offer)
        self.client = OrchestratorClient(running.listening.url, lambda: agent.token, None)
        self.path = f"/api/jobs/{self.offer.job_id}/logs"

    @property
    def turn(self) -> Turn:
        return turn_of(self.offer)

    def shipper(self, stream: LogStream, rank: int = 0) -> LogShipper:
        return LogShipper(
            self.offer, rank, stream, self.client, look_every_s=0.01, backoff=Backoff(0.01, 0.02)
        )

    async def log(self, **query: Any) -> bytes:
        return (await self.running.http.get(self.path, params=query)).content

    async def page(self, **query: Any) -> Any:
        headers = {"Accept": "application/json"}
        return (await self.running.http.get(self.path, params=query, headers=headers)).json()


@asynccontextmanager
async def attempt() -> AsyncIterator[Attempt]:
    async with orchestrator() as running:
        agent = await running.worker()
        await running.submit()
        one = Attempt(running, agent, await agent.take())
        try:
            yield one
        finally:
            await one.client.close()


def has_ended() -> asyncio.Event:
    ended = asyncio.Event()
    ended.set()
    return ended


async def test_every_byte_arrives_as_it_was_printed(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    content = bytes(byte for byte in range(256) if byte != 13) * 12_000 + b"no newline"
    async with attempt() as one:
        log.write_bytes(content[:100])
        ended = asyncio.Event()
        shipping = asyncio.create_task(one.shipper(LogStream([log], tmp_path / "index")).run(ended))
        with log.open("ab") as file:
            for at in range(100, len(content), 700_000):
                file.write(content[at : at + 700_000])
                file.flush()
                await asyncio.sleep(0.01)
        ended.set()
        await asyncio.wait_for(shipping, 10)
        assert await one.log() == content


async def test_a_shipper_after_a_killed_one_goes_on_without_a_gap_or_repeat(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    async with attempt() as one:
        log.write_bytes(b"one\n\r1%\r2%\r3%")
        first = asyncio.create_task(one.shipper(LogStream([log], tmp_path / "index")).run(asyncio.Event()))

        async def has_first() -> bool:
            return (await one.log()).startswith(b"one\n")

        await until(has_first)
        first.cancel()
        await asyncio.wait({first})
        with log.open("ab") as file:
            file.write(b"\r4%\nend\n")
        stream = LogStream([log], tmp_path / "index")
        await asyncio.wait_for(one.shipper(stream).run(has_ended()), 10)
        sent = await one.log()
        assert sent.startswith(b"one\n\r")
        assert sent.endswith(b"4%\nend\n")
        assert sent.count(b"one") == sent.count(b"4%") == 1


async def test_the_cap_leaves_a_marked_and_counted_gap(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"h" * 50 + b"-" * 5000 + b"t" * 20)
    async with attempt() as one:
        stream = LogStream([log], tmp_path / "index", LogLimits(head_bytes=50, tail_bytes=20))
        await asyncio.wait_for(one.shipper(stream).run(has_ended()), 10)
        assert (await one.log()).decode() == "h" * 50 + "\n… 5,000 bytes left out …\n" + "t" * 20
        assert (await one.page())["gap_bytes"] == 5000


async def test_an_orchestrator_that_keeps_nothing_is_not_asked_in_a_tight_loop(tmp_path: Path) -> None:
    calls = 0
    hung_up = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        with contextlib.suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"content-length: *(\d+)", head.lower())
                await reader.readexactly(int(length[1]) if length else 0)
                calls += 1
                body = json.dumps({"next_offset": 0}).encode()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()
        await writer.wait_closed()
        hung_up.set()

    log = tmp_path / "output.log"
    log.write_bytes(b"something\n")
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = OrchestratorClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lambda: "t", None)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.0
        return now

    offer = JobSubmit(
        job_id="j",
        attempt=1,
        attempt_id="a",
        epoch=1,
        config_name="",
        config={},
        trainer="command",
        upload_endpoint="",
    )
    shipper = LogShipper(
        offer,
        0,
        LogStream([log], tmp_path / "index"),
        client,
        patience_s=20.0,
        backoff=Backoff(0.001, 0.002),
        clock=clock,
    )
    await asyncio.wait_for(shipper.run(has_ended()), 10)
    assert 2 < calls < 30
    await client.close()
    await asyncio.wait_for(hung_up.wait(), 5)
    server.close()


async def test_a_stale_attempt_is_shipped_no_further(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"late\n")
    async with attempt() as one:
        one.offer.epoch += 1
        await asyncio.wait_for(one.shipper(LogStream([log], tmp_path / "index")).run(asyncio.Event()), 10)
        assert await one.log() == b""


async def test_ranks_that_print_to_files_of_their_own_have_logs_of_their_own(tmp_path: Path) -> None:
    log, ranks = tmp_path / "output.log", tmp_path / "ranks" / "run" / "attempt_0"
    log.write_bytes(b"main\n")
    files: dict[int, list[Path]] = {}
    for rank in (0, 1):
        (ranks / str(rank)).mkdir(parents=True)
        files[rank] = [ranks / str(rank) / "stdout.log", ranks / str(rank) / "stderr.log"]
        files[rank][0].write_bytes(b"rank %d out\n" % rank)
        files[rank][1].write_bytes(b"rank %d err\n" % rank)
    async with attempt() as one:
        over = asyncio.Event()
        logs = LogShippers(one.client, on_over=over.set)
        sources = LogSources(
            output_log=log, folder=tmp_path, rank_logs=lambda: files, mask=Mask.of(["rank 1 out"])
        )
        assert logs.are_over(one.turn)
        logs.begin(one.offer, sources, asyncio.sleep(0))
        assert not logs.are_over(one.turn)
        await asyncio.wait_for(over.wait(), 10)
        assert logs.are_over(one.turn)
        assert await one.log() == b"main\n"
        assert await one.log(rank=1) == b"**********\nrank 1 err\n"
        assert await one.log(rank=2) == b""
        assert (await one.page(rank=1))["lines"][1]["text"] == "rank 1 err"


async def test_what_cannot_be_masked_any_more_is_not_sent_but_counted(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"a secret\n")
    async with attempt() as one:
        logs = LogShippers(one.client)
        sources = LogSources(output_log=log, folder=tmp_path, rank_logs=dict, mask=Mask(), unmaskable=True)
        logs.begin(one.offer, sources, asyncio.sleep(0))
        await asyncio.wait_for(logs.task(one.turn), 10)
        sent = (await one.log()).decode()
        assert "secret\n" not in sent
        assert "9 bytes left out because the worker restarted" in sent
