"""What a final report says of an attempt's results, and when it may go."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from simpletuner_fleet.agent.agent import Agent
from simpletuner_fleet.agent.attempts.endings import AttemptEnding
from simpletuner_fleet.agent.senders import AttemptSenders, NoEvents
from simpletuner_fleet.agent.ship import uploads
from simpletuner_fleet.agent.ship.uploader import Uploader
from simpletuner_fleet.agent.wire.bandwidth import Bandwidth
from simpletuner_fleet.agent.wire.client import OrchestratorClient
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import EndReason, Results
from simpletuner_fleet.protocol.messages import JobSubmit, ReportStatus, StatusReport
from simpletuner_fleet.trainers.checkpoints import CheckpointHabits
from simpletuner_fleet.trainers.contract import Paths
from tests.agent.object_server import ObjectServer
from tests.agent.ship.uploader_kit import until

TURN = Turn("j_1", 7)
WELL = AttemptEnding(reason=EndReason.EXITED, exit_code=0)
ILL = AttemptEnding(reason=EndReason.EXITED, exit_code=1)


def offer(**changes: Any) -> JobSubmit:
    facts: dict[str, Any] = {
        "job_id": "j_1",
        "attempt": 1,
        "attempt_id": "a_1",
        "epoch": 7,
        "config_name": "c",
        "config": {},
        "trainer": "command",
        "upload_endpoint": "",
    }
    return JobSubmit(**{**facts, **changes})


async def ended(ending: AttemptEnding) -> AttemptEnding:
    return ending


def paths_with_a_model(folder: Path) -> Paths:
    paths = Paths(attempt_dir=folder, config_dir=folder / "config", output_dir=folder / "output")
    paths.output_dir.mkdir()
    (paths.output_dir / "model.bin").write_bytes(b"weights")
    return paths


@pytest.mark.parametrize(("ending", "waits"), [(WELL, True), (ILL, False)])
async def test_only_what_ended_well_waits_for_as_long_as_its_results_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: AttemptEnding, waits: bool
) -> None:
    async with ObjectServer() as server:
        server.always = (503, "store_unavailable")
        client = OrchestratorClient(server.url, lambda: "", None)
        senders = AttemptSenders(client, NoEvents(), Bandwidth(), None)
        paths = paths_with_a_model(tmp_path)
        uploader_made = Uploader

        def impatient(*args: Any, **choices: Any) -> Any:
            return uploader_made(*args, patience_s=0.2, **choices)

        monkeypatch.setattr(uploads, "Uploader", impatient)
        senders.uploads.upload(offer(results_wait_s=60.0), paths, CheckpointHabits(), ended(ending))
        if waits:
            await asyncio.sleep(3.0)
            assert not senders.uploads.are_over(TURN)
            assert "store_unavailable" in senders.trouble(TURN)
        else:
            await until(lambda: senders.uploads.are_over(TURN))
            assert senders.results(TURN) is Results.MISSING
        senders.hurry()
        assert senders.was_cut_short(TURN) is waits
        senders.forget(TURN)
        await client.close()


async def test_what_was_given_up_is_missing_and_what_arrived_is_stored(tmp_path: Path) -> None:
    async with ObjectServer() as server:
        client = OrchestratorClient(server.url, lambda: "", None)
        senders = AttemptSenders(client, NoEvents(), Bandwidth(), None)
        task = senders.uploads.upload(offer(), paths_with_a_model(tmp_path), CheckpointHabits(), ended(WELL))
        await asyncio.wait_for(task, 20)
        assert senders.results(TURN) is Results.STORED
        uploader = senders.uploads.get(TURN)
        assert uploader is not None
        uploader.not_sent["model"] = "too large"
        assert senders.results(TURN) is Results.MISSING
        await client.close()


class CutShort:
    """Senders that had no more time."""

    def has_sent_all(self, turn: Turn) -> bool:
        return True

    def was_cut_short(self, turn: Turn) -> bool:
        return True


@pytest.mark.parametrize(
    ("status", "goes"),
    [(ReportStatus.COMPLETED, False), (ReportStatus.FAILED, True), (ReportStatus.RELEASED, True)],
)
def test_a_completion_whose_results_were_cut_short_is_kept_for_the_next_start(
    status: ReportStatus, goes: bool
) -> None:
    class Attempts:
        senders = CutShort()

    agent = Agent.__new__(Agent)
    agent.attempts = Attempts()  # type: ignore[assignment]
    assert agent._may_report(TURN, StatusReport(status=status)) is goes
