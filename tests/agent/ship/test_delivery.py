import asyncio
from pathlib import Path

from simpletuner_fleet.agent.ship.delivery import Delivery
from simpletuner_fleet.agent.ship.spool import Spool
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.protocol.messages import ReportAnswer, ReportStatus, StatusReport


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
    delivery = Delivery(Spool(tmp_path / "spool"), client, may_go=lambda turn: turn not in uploading)
    running = asyncio.create_task(delivery.run())
    for job_id in ("j_1", "j_2"):
        await delivery.keep(Turn(job_id, 3), StatusReport(status=ReportStatus.COMPLETED, epoch=3))
    await asyncio.sleep(0.1)
    assert [job_id for job_id, _ in client.heard] == ["j_2"]
    uploading.clear()
    delivery.wake()
    await asyncio.sleep(0.1)
    assert [job_id for job_id, _ in client.heard] == ["j_2", "j_1"]
    running.cancel()
    await client.close()
