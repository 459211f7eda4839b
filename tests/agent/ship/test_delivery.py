import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devtools.fuzz.agent.lying_server import answer
from simpletuner_fleet.agent.ship.delivery import Delivery
from simpletuner_fleet.agent.ship.spool import Spool
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.protocol.messages import ReportAnswer, ReportStatus, StatusReport
from simpletuner_fleet.protocol.problems import TYPE_PREFIX
from tests.agent.ship.uploader_kit import until


class Listening(OrchestratorClient):
    """An orchestrator that takes every report."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:9", lambda: "", None)
        self.heard: list[tuple[str, StatusReport]] = []

    async def report(self, job_id: str, message: StatusReport) -> ReportAnswer:
        self.heard.append((job_id, message))
        return ReportAnswer(accepted=True, job_status="completed")


async def test_an_outcome_that_no_disk_takes_is_delivered_all_the_same(tmp_path: Path) -> None:
    client = Listening()
    delivered: list[Turn] = []
    delivery = Delivery(Spool(tmp_path / "spool", max_records=0), client, on_delivered=delivered.append)
    report = StatusReport(status=ReportStatus.COMPLETED, epoch=3)
    await delivery.keep(Turn("j_1", 3), report)
    assert await delivery.deliver_once()
    assert client.heard == [("j_1", report)]
    assert delivered == [("j_1", 3)]
    await client.close()


async def test_a_disk_that_lets_no_delivered_report_go_keeps_no_other_from_being_delivered(
    tmp_path: Path,
) -> None:
    client = Listening()
    delivered: list[Turn] = []
    delivery = Delivery(Spool(tmp_path / "spool"), client, on_delivered=delivered.append)
    for job_id in ("j_1", "j_2"):
        await delivery.keep(Turn(job_id, 3), StatusReport(status=ReportStatus.COMPLETED, epoch=3))
    for file in (tmp_path / "spool").iterdir():
        file.unlink()
        file.mkdir()  # which nobody can unlink
    assert await delivery.deliver_once()
    assert await delivery.deliver_once()
    assert [job_id for job_id, _ in client.heard] == ["j_1", "j_2"]
    assert delivered == [("j_1", 3), ("j_2", 3)]
    await client.close()


async def test_a_report_that_nobody_answers_stays_on_the_disk(tmp_path: Path) -> None:
    client = OrchestratorClient("http://127.0.0.1:9", lambda: "", None)
    spool = Spool(tmp_path / "spool")
    delivered: list[Turn] = []
    delivery = Delivery(spool, client, on_delivered=delivered.append)
    await delivery.keep(Turn("j_1", 3), StatusReport(status=ReportStatus.COMPLETED, epoch=3))
    assert await delivery.deliver_once() is False
    assert [record.job_id for record in spool.pending()] == ["j_1"]
    assert delivered == []
    await client.close()


async def test_a_report_waits_for_its_uploads_and_lets_others_pass(tmp_path: Path) -> None:
    client = Listening()
    uploading = {("j_1", 3)}
    delivery = Delivery(Spool(tmp_path / "spool"), client, may_go=lambda turn, report: turn not in uploading)
    running = asyncio.create_task(delivery.run())
    for job_id in ("j_1", "j_2"):
        await delivery.keep(Turn(job_id, 3), StatusReport(status=ReportStatus.COMPLETED, epoch=3))
    await until(lambda: bool(client.heard))
    assert [job_id for job_id, _ in client.heard] == ["j_2"]
    uploading.clear()
    delivery.wake()
    await until(lambda: [job_id for job_id, _ in client.heard] == ["j_2", "j_1"])
    running.cancel()
    await client.close()


def own_problem(status: int, code: str) -> bytes:
    return answer(
        status,
        b'{"type":"%s","status":%d,"code":"%s"}' % ((TYPE_PREFIX + code).encode(), status, code.encode()),
    )


@asynccontextmanager
async def answering_each(reply: Callable[[bytes], bytes]) -> AsyncIterator[OrchestratorClient]:
    """Yields a client, each of whose calls is answered by its head; ends when every connection is closed."""
    answered: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered.add(asyncio.current_task())
        try:
            writer.write(reply(await reader.readuntil(b"\r\n\r\n")))
            await writer.drain()
        finally:
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = OrchestratorClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lambda: "", None)
    try:
        yield client
    finally:
        await client.close()
        server.close()
        await asyncio.gather(*filter(None, answered), return_exceptions=True)


@pytest.mark.parametrize(
    "reply", [own_problem(500, "internal_error"), answer(403, b"<html>a firewall</html>")]
)
async def test_a_report_that_is_not_taken_keeps_no_other_from_being_delivered(
    tmp_path: Path, reply: bytes
) -> None:
    taken = answer(200, b'{"accepted":true,"job_status":"completed"}')
    delivered: list[str] = []
    spool = Spool(tmp_path / "spool")
    async with answering_each(lambda head: reply if b"/j_1/" in head else taken) as client:
        delivery = Delivery(spool, client, on_delivered=lambda turn: delivered.append(turn.job_id))
        for job_id in ("j_1", "j_2", "j_3"):
            await delivery.keep(Turn(job_id, 3), StatusReport(status=ReportStatus.COMPLETED, epoch=3))
        running = asyncio.create_task(delivery.run())
        try:
            await until(lambda: delivered == ["j_2", "j_3"])
            assert [record.job_id for record in spool.pending()] == ["j_1"]
        finally:
            running.cancel()


async def after_answer(folder: Path, reply: bytes) -> tuple[bool | None, int]:
    """Whether the report counts as answered, and how many are kept then."""
    spool = Spool(folder / "spool")
    async with answering_each(lambda head: reply) as client:
        delivery = Delivery(spool, client)
        await delivery.keep(Turn("j_1", 3), StatusReport(status=ReportStatus.COMPLETED, epoch=3))
        return await delivery.deliver_once(), len(spool)


@pytest.mark.parametrize(
    "status", [200, 204, 301, 302, 400, 401, 403, 404, 405, 407, 409, 410, 413, 418, 502]
)
@pytest.mark.parametrize("body", [b"", b"<html>a proxy</html>", b'{"code":"stale_attempt","detail":"x"}'])
async def test_an_outcome_survives_whatever_stands_between(tmp_path: Path, status: int, body: bytes) -> None:
    assert await after_answer(tmp_path, answer(status, body)) == (False, 1)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "network_not_allowed"),
        (403, "forbidden"),
        (405, "method_not_allowed"),
        (503, "store_unavailable"),
    ],
)
async def test_an_outcome_survives_what_an_administrator_may_mend(
    tmp_path: Path, status: int, code: str
) -> None:
    assert await after_answer(tmp_path, own_problem(status, code)) == (False, 1)


@pytest.mark.parametrize(("status", "code"), [(409, "stale_attempt"), (404, "not_found")])
async def test_an_outcome_is_let_go_when_the_orchestrator_itself_has_no_use_for_it(
    tmp_path: Path, status: int, code: str
) -> None:
    assert await after_answer(tmp_path, own_problem(status, code)) == (True, 0)
