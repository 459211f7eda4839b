"""A job that is not in the database any more: whatever else its worker holds, and everybody else, goes on."""

import logging
import sqlite3
from pathlib import Path

import pytest

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.events import ORCHESTRATOR
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.orchestrator.submit import cancel_in
from tests.orchestrator.workers.test_unreadable_rows import POLICY, damaged

VANISHED = "DELETE FROM jobs WHERE id = ?"
"""Without foreign keys, as any program but ours opens the database: the job's attempts are left behind."""


async def test_its_worker_is_told_to_stop_it_and_the_other_job_goes_on(tmp_path: Path) -> None:
    async with damaged(tmp_path / "fleet.db", VANISHED) as after:
        held = [{"job_id": one["job_id"], "epoch": one["epoch"]} for one in after.offers]
        registered = await after.agent.register(attempts=held, max_jobs=2)
        assert [one["job_id"] for one in registered["keep"]] == [after.good]
        assert [one["job_id"] for one in registered["stop"]] == [after.bad]
        beat = await after.agent.heartbeat(*after.offers)
        assert [one["job_id"] for one in beat["stop"]] == [after.bad]
        assert (await after.running.job(after.good))["status"] == "running"


async def test_health_checks_look_after_the_others_and_do_not_fail_over_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with damaged(tmp_path / "fleet.db", VANISHED) as after:
        presence = after.running.fleet.presence
        with caplog.at_level(logging.ERROR):
            await after.running.pass_time(300.0)
        worker = await after.running.get(f"/api/admin/workers/{after.agent.id}")
        assert worker["status"] == "offline"
        assert (await after.running.job(after.good))["status"] == "queued"
        epoch = next(one["epoch"] for one in after.offers if one["job_id"] == after.bad)
        assert Turn(after.bad, epoch) not in presence.unconfirmed_attempts(), "it is not looked for for ever"
        assert "a part of the health check failed" not in caplog.text


async def test_an_offer_of_it_that_nobody_accepted_is_not_looked_for_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with damaged(tmp_path / "fleet.db", VANISHED) as after:
        with sqlite3.connect(tmp_path / "fleet.db") as connection:
            assert connection.execute(
                "UPDATE attempts SET state = 'offered' WHERE job_id = ?", (after.bad,)
            ).rowcount
        connection.close()
        fleet = after.running.fleet
        await fleet.start()
        with caplog.at_level(logging.ERROR):
            await after.running.pass_time(300.0)
        assert list(fleet.presence.old_offers()) == []
        assert "a part of the health check failed" not in caplog.text


async def test_a_job_whose_attempt_is_not_there_any_more_keeps_no_other_from_its_results(
    tmp_path: Path,
) -> None:
    gone = "DELETE FROM attempts WHERE job_id = ?"
    async with damaged(tmp_path / "fleet.db", gone, finishing=True) as after:
        await after.running.pass_time(POLICY.results_wait_s + 300.0)
        assert (await after.running.job(after.good))["status"] == "completed"


async def test_a_worker_that_is_not_there_any_more_loses_its_jobs_and_they_can_be_cancelled(
    tmp_path: Path,
) -> None:
    gone = "DELETE FROM workers WHERE id = (SELECT worker_id FROM attempts WHERE job_id = ?)"
    async with damaged(tmp_path / "fleet.db", gone) as after:
        running = after.running
        assert (await running.post(f"/api/jobs/{after.good}/cancel"))["status"] == "cancelling"
        await running.pass_time(300.0)
        assert (await running.job(after.good))["status"] == "cancelled"
        assert (await running.job(after.bad))["status"] == "queued"


async def test_results_of_the_other_job_are_not_waited_for_for_ever(tmp_path: Path) -> None:
    async with damaged(tmp_path / "fleet.db", VANISHED, finishing=True) as after:
        await after.running.pass_time(POLICY.results_wait_s + 300.0)
        assert (await after.running.job(after.good))["status"] == "completed"


async def test_a_job_whose_attempt_is_not_there_any_more_can_be_cancelled_and_its_place_is_free_again(
    tmp_path: Path,
) -> None:
    gone = "DELETE FROM attempts WHERE job_id = ?"
    async with damaged(tmp_path / "fleet.db", gone) as after:
        running, agent = after.running, after.agent
        held = [{"job_id": one["job_id"], "epoch": one["epoch"]} for one in after.offers]
        registered = await agent.register(attempts=held, max_jobs=2)
        assert [one["job_id"] for one in registered["stop"]] == [after.bad]
        await agent.open_stream()
        waiting = str((await running.submit())["job_id"])
        assert (await running.job(waiting))["status"] == "queued", "nobody knows whether its trainer runs"
        assert (await running.post(f"/api/jobs/{after.bad}/cancel"))["status"] == "cancelled"
        assert (await agent.take())["job_id"] == waiting
        assert (await running.job(after.good))["status"] == "running"


async def test_a_refused_step_leaves_the_place_of_such_a_job_taken(tmp_path: Path) -> None:
    gone = "DELETE FROM attempts WHERE job_id = ?"
    async with damaged(tmp_path / "fleet.db", gone) as after:
        running, fleet = after.running, after.running.fleet
        held = [{"job_id": one["job_id"], "epoch": one["epoch"]} for one in after.offers]
        await after.agent.register(attempts=held, max_jobs=2)
        await after.agent.open_stream()

        def refused(transaction: Transaction) -> None:
            cancel_in(transaction, after.bad, ORCHESTRATOR, checkpoint_first=False, grace_s=None)
            raise NotFound("Something else is not there.")

        with pytest.raises(NotFound, match="Something else"):
            await fleet.act(refused)
        waiting = str((await running.submit())["job_id"])
        assert (await running.job(waiting))["status"] == "queued"
        await running.post(f"/api/jobs/{after.bad}/cancel")
        assert (await after.agent.take())["job_id"] == waiting


async def test_such_a_job_that_was_asked_to_stop_before_is_cancelled_as_well(tmp_path: Path) -> None:
    gone = "DELETE FROM attempts WHERE job_id = ?"
    async with damaged(tmp_path / "fleet.db", gone, cancelled=True) as after:
        running = after.running
        assert (await running.job(after.bad))["status"] == "cancelling"
        assert (await running.post(f"/api/jobs/{after.bad}/cancel"))["status"] == "cancelled"
