"""A trainer's output on its way to a real orchestrator: every byte once, whoever was away."""

import asyncio
import errno
import itertools
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.actions import turn_of
from simpletuner_fleet.agent.ship.logs.log_shipper import WITHHELD, LogShipper, LogShippers, LogSources
from simpletuner_fleet.agent.ship.logs.log_stream import LogLimits, LogStream, left_out
from simpletuner_fleet.agent.ship.masking import NO_MASK, Mask
from simpletuner_fleet.agent.wire.backoff import Backoff
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.errors import Invalid
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.protocol.messages import JobSubmit
from simpletuner_fleet.protocol.problems import TYPE_PREFIX
from tests.agent.answering import OFFER, answering
from tests.agent.log_files import scanned
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

    def shipper(self, stream: LogStream, rank: int = 0, **more: Any) -> LogShipper:
        return LogShipper(
            self.offer, rank, stream, self.client, look_every_s=0.01, backoff=Backoff(0.01, 0.02), **more
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
    log = tmp_path / "output.log"
    log.write_bytes(b"something\n")
    now, calls = itertools.count(), itertools.count()

    def keep_nothing() -> tuple[HTTPStatus, Any]:
        next(calls)
        return HTTPStatus.OK, {"next_offset": 0}

    async with answering(keep_nothing) as client:
        shipper = LogShipper(
            OFFER,
            0,
            LogStream([log], tmp_path / "index"),
            client,
            patience_s=20.0,
            backoff=Backoff(0.001, 0.002),
            monotonic=lambda: float(next(now)),
        )
        await asyncio.wait_for(shipper.run(has_ended()), 10)
    assert 2 < next(calls) < 30
    assert shipper.left_something


async def test_a_step_of_the_clock_ends_no_patience(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"something\n")
    days, answers = itertools.count(), iter([0, 0, 0, 10])
    async with answering(lambda: (HTTPStatus.OK, {"next_offset": next(answers)})) as client:
        shipper = LogShipper(
            OFFER,
            0,
            LogStream([log], tmp_path / "index"),
            client,
            backoff=Backoff(0.001, 0.002),
            clock=lambda: next(days) * 86_400.0,
        )
        await asyncio.wait_for(shipper.run(has_ended()), 10)
    assert shipper.sent_something
    assert not shipper.left_something


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


async def test_what_ranks_printed_and_cannot_be_masked_any_more_is_counted_as_well(tmp_path: Path) -> None:
    log, rank = tmp_path / "output.log", tmp_path / "rank-1.log"
    log.write_bytes(b"a secret\n")
    rank.write_bytes(b"another secret\n")
    async with attempt() as one:
        logs = LogShippers(one.client)
        sources = LogSources(
            output_log=log, folder=tmp_path, rank_logs=lambda: {1: [rank]}, mask=Mask(), unmaskable=True
        )
        logs.begin(one.offer, sources, asyncio.sleep(0))
        await asyncio.wait_for(logs.task(one.turn), 10)
        assert "15 bytes left out because the worker restarted" in (await one.log(rank=1)).decode()
        assert not logs.left_something(one.turn)


async def test_how_much_is_withheld_is_said_once_after_a_refusal_that_passes(tmp_path: Path) -> None:
    """The first answer is lost though what was sent is kept, and the next ones refuse for a while."""
    log = tmp_path / "output.log"
    log.write_bytes(b"x" * 200)
    busy = HTTPStatus.SERVICE_UNAVAILABLE
    code = "storage_unavailable"
    problem = {"type": TYPE_PREFIX + code, "code": code, "status": busy}
    said = len(left_out(190, WITHHELD))
    answers = [(busy, problem), (200, 10), (busy, problem), (200, 10 + said)]
    asked: list[int] = []

    def answer() -> tuple[HTTPStatus, Any]:
        status, about = answers[len(asked)]
        asked.append(status)
        return HTTPStatus(status), about if status == busy else {"next_offset": about}

    async with answering(answer) as client:
        shipper = LogShipper(
            OFFER, 0, LogStream([log], tmp_path / "index"), client, backoff=Backoff(0.001, 0.002)
        )
        await asyncio.wait_for(shipper.withhold(), 10)
    assert len(asked) == len(answers)
    assert shipper.sent_something
    assert not shipper.left_something


async def test_what_is_withheld_is_said_once_however_often_the_agent_restarts(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"a secret\n" * 100)
    sources = LogSources(output_log=log, folder=tmp_path, rank_logs=dict, mask=Mask(), unmaskable=True)
    async with attempt() as one:
        for _ in range(3):
            logs = LogShippers(one.client)
            logs.begin(one.offer, sources, asyncio.sleep(0))
            await asyncio.wait_for(logs.task(one.turn), 10)
        assert (await one.log()).decode().count("bytes left out") == 1


async def test_a_log_whose_withholding_nobody_takes_counts_as_left(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"a secret\n")
    code, status = Invalid.code, HTTPStatus.UNPROCESSABLE_ENTITY
    problem = {"type": TYPE_PREFIX + code, "code": code, "status": status}
    async with answering(lambda: (status, problem)) as client:
        logs = LogShippers(client)
        sources = LogSources(output_log=log, folder=tmp_path, rank_logs=dict, mask=Mask(), unmaskable=True)
        logs.begin(OFFER, sources, asyncio.sleep(0))
        await asyncio.wait_for(logs.task(turn_of(OFFER)), 10)
    assert logs.left_something(turn_of(OFFER))


async def test_ranks_that_are_too_many_are_counted_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "output.log").write_bytes(b"main\n")
    files = {rank: [tmp_path / f"rank-{rank}.log"] for rank in (1, 255, 256, 300)}
    sources = LogSources(
        output_log=tmp_path / "output.log", folder=tmp_path, rank_logs=lambda: files, mask=NO_MASK
    )
    turn, known = turn_of(OFFER), dict[int, LogStream]()
    logs = LogShippers(OrchestratorClient("http://127.0.0.1:9", lambda: "t", None))
    for _ in range(2):
        await logs.find_ranks_once(OFFER, sources, known)
    assert set(known) == {1, 255}
    assert logs.left_something(turn)
    assert logs.trouble(turn) == "the logs of 2 ranks from rank 256 on are not sent"
    assert caplog.text.count("the logs of 2 ranks") == 1
    logs.forget(turn)
    assert not logs.left_something(turn)


class Machine:
    """A machine that has no room for records of logs, or no more files to open, while it is so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.full = self.has_too_many_open = False
        self.refusals = 0
        self._write, self._open = os.pwrite, os.open
        monkeypatch.setattr(os, "pwrite", self._pwrite)
        monkeypatch.setattr(os, "open", self._opened)

    def _pwrite(self, file: int, data: Any, place: int) -> int:
        if self.full:
            self.refusals += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._write(file, data, place)

    def _opened(self, path: Any, *how: Any, **more: Any) -> int:
        if self.has_too_many_open and str(path).endswith((".log", "index")):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._open(path, *how, **more)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


async def test_a_disk_that_is_full_for_a_while_costs_no_line_and_repeats_none(
    tmp_path: Path, machine: Machine
) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"one\n")
    async with attempt() as one:
        shipper, ended = one.shipper(LogStream([log], tmp_path / "index")), asyncio.Event()
        shipping = asyncio.create_task(shipper.run(ended))
        await until(lambda: shipper.sent_something)
        machine.full = True
        with log.open("ab") as file:
            file.write(b"two\n\r1%\r2%")
        await until(lambda: "No space left on device" in shipper.trouble)
        with log.open("ab") as file:
            file.write(b"\r3%\nthree\n")
        ended.set()
        machine.full = False
        await asyncio.wait_for(shipping, 10)
        assert await one.log() == b"one\ntwo\n\r3%\nthree\n"
        assert not shipper.left_something
        assert not shipper.trouble


async def test_a_disk_that_stays_full_is_said_and_no_report_waits_for_it_or_tries_without_a_pause(
    tmp_path: Path, machine: Machine
) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"one\n")
    async with attempt() as one:
        shipper = one.shipper(LogStream([log], tmp_path / "index"), patience_s=0.05)
        ended = asyncio.Event()
        shipping = asyncio.create_task(shipper.run(ended))
        await until(lambda: shipper.sent_something)
        machine.full = True
        with log.open("ab") as file:
            file.write(b"two\n")
        ended.set()
        await asyncio.wait_for(shipping, 10)
        assert shipper.left_something
        assert "No space left on device" in shipper.trouble
        assert 1 < machine.refusals < 30
        assert await one.log() == b"one\n"


async def test_too_many_open_files_are_waited_for(tmp_path: Path, machine: Machine) -> None:
    """At the beginning, while it is read, and while it is sent."""
    log = tmp_path / "output.log"
    log.write_bytes(b"one\n")
    machine.has_too_many_open = True
    async with attempt() as one:
        shipper, ended = one.shipper(LogStream([log], tmp_path / "index")), asyncio.Event()
        shipping = asyncio.create_task(shipper.run(ended))
        await until(lambda: "Too many open files" in shipper.trouble)
        machine.has_too_many_open = False
        await until(lambda: shipper.sent_something)
        with log.open("ab") as file:
            file.write(b"two\n")
        machine.has_too_many_open = True
        ended.set()
        await until(lambda: "Too many open files" in shipper.trouble)
        machine.has_too_many_open = False
        await asyncio.wait_for(shipping, 10)
        assert await one.log() == b"one\ntwo\n"
        assert not shipper.left_something


async def test_a_piece_that_cannot_be_read_for_now_is_read_again(tmp_path: Path, machine: Machine) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"one\n")
    async with attempt() as one:
        shipper = one.shipper(LogStream([log], tmp_path / "index"))
        await shipper.read_once(True)
        machine.has_too_many_open = True
        assert await shipper.send_once()
        assert "Too many open files" in shipper.trouble
        machine.has_too_many_open = False
        await asyncio.wait_for(shipper.run(has_ended()), 10)
        assert await one.log() == b"one\n"
        assert not shipper.left_something


async def test_a_reader_that_meets_what_nobody_thought_of_is_said_and_no_report_waits_for_it(
    tmp_path: Path,
) -> None:
    log = tmp_path / "output.log"
    log.write_bytes(b"one\n")

    def broken() -> float:
        raise RecursionError("too deep")

    async with attempt() as one:
        shipper = one.shipper(LogStream([log], tmp_path / "index"), clock=broken)
        await asyncio.wait_for(shipper.run(asyncio.Event()), 10)
        assert shipper.left_something
        assert shipper.trouble == "RecursionError: too deep"


class Logs:
    """The logs of one attempt, whose trainer ends when it is told to."""

    def __init__(self, one: Attempt, folder: Path, ranks: Mapping[int, Sequence[Path]]) -> None:
        self.main = folder / "output.log"
        self.main.write_bytes(b"main\n")
        self.turn = one.turn
        self.shippers = LogShippers(one.client)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        sources = LogSources(output_log=self.main, folder=folder, rank_logs=lambda: ranks, mask=NO_MASK)
        self.shippers.begin(one.offer, sources, self._ended)

    async def end(self) -> None:
        with self.main.open("ab") as file:
            file.write(b"the end\n")
        self._ended.set_result(None)
        await until(lambda: self.shippers.are_over(self.turn))


async def test_a_log_that_cannot_be_recorded_is_not_called_stored_and_ends_no_other(tmp_path: Path) -> None:
    rank = tmp_path / "rank-1.log"
    rank.write_bytes(b"rank 1\n")
    (tmp_path / "sent-0.log-index").mkdir()
    async with attempt() as one:
        logs = Logs(one, tmp_path, {1: [rank]})
        await logs.end()
        assert logs.shippers.left_something(one.turn)
        assert "Is a directory" in logs.shippers.trouble(one.turn)
        assert await one.log(rank=1) == b"rank 1\n"


async def test_a_rank_with_more_files_than_can_be_told_apart_ends_no_log_and_is_said(tmp_path: Path) -> None:
    files = [tmp_path / f"{number:03}.log" for number in range(257)]
    for number, file in enumerate(files):
        file.write_bytes(b"%d\n" % number)
    async with attempt() as one:
        logs = Logs(one, tmp_path, {1: files})
        await logs.end()
        assert await one.log() == b"main\nthe end\n"
        assert await one.log(rank=1) == b"".join(b"%d\n" % number for number in range(256))
        assert logs.shippers.left_something(one.turn)
        assert logs.shippers.trouble(one.turn) == "of 257 files of rank 1, 256 are sent"


async def test_a_rank_log_that_is_a_link_to_itself_hinders_nothing(tmp_path: Path) -> None:
    loop = tmp_path / "rank-1.log"
    loop.symlink_to(loop)
    async with attempt() as one:
        logs = Logs(one, tmp_path, {1: [loop]})
        await logs.end()
        assert await one.log() == b"main\nthe end\n"
        assert not logs.shippers.left_something(one.turn)


async def test_a_rank_log_that_is_removed_before_it_is_sent_does_not_end_the_main_log(tmp_path: Path) -> None:
    rank = tmp_path / "rank-1.log"
    rank.write_bytes(b"rank 1\n")
    earlier = scanned(LogStream([rank], tmp_path / "sent-1.log-index"))
    earlier.close()
    rank.unlink()
    async with attempt() as one:
        logs = Logs(one, tmp_path, {1: [rank]})
        await until(lambda: logs.shippers.left_something(one.turn))
        assert "rank-1.log" in logs.shippers.trouble(one.turn)
        await logs.end()
        assert await one.log() == b"main\nthe end\n"
