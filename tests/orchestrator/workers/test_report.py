"""What a worker reports of the end of a training, as it is stored."""

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.orchestrator.workers import report
from simpletuner_fleet.protocol.messages import Accept, ReportStatus, StatusReport
from simpletuner_fleet.store import MemoryStore
from tests.core.builders import NOW, POLICY, a_job, a_worker
from tests.http.api_kit import orchestrator
from tests.store.samples import BUNDLE


async def test_a_blank_error_is_none() -> None:
    async with orchestrator() as running:
        worker, job_id = await running.worker(), (await running.submit(max_retries=0))["job_id"]
        offer = await worker.take()
        await worker.report(offer, "running")
        await worker.report(offer, "failed", error=" \n\t", exit_code=3)
        job = await running.job(job_id)
        assert job["status"] == "failed"
        assert job["error"] == "the trainer exited with code 3"


async def test_an_error_is_kept_without_the_space_around_it() -> None:
    async with orchestrator() as running:
        worker, job_id = await running.worker(), (await running.submit(max_retries=0))["job_id"]
        offer = await worker.take()
        await worker.report(offer, "running")
        await worker.report(offer, "failed", error=" " * 10_000 + "no space left\non the disk\n", exit_code=3)
        assert (await running.job(job_id))["error"] == "no space left\non the disk"


async def test_who_accepts_or_reports_was_heard_and_has_confirmed_the_attempt() -> None:
    now, worker = NOW, a_worker()
    clock = SteadyClock(wall=lambda: now, monotonic=lambda: now)
    fleet = Fleet(MemoryStore(), FleetIndex(), clock, RandomIds(b"s" * 32), StreamHub(), POLICY)
    await fleet.start()
    await fleet.act(lambda transaction: transaction.add_worker(worker))
    await fleet.act(lambda transaction: transaction.set_reachable(worker.id, True))
    await fleet.act(lambda transaction: transaction.add_job(a_job(), BUNDLE))
    (attempt,) = await fleet.read(lambda view: view.live_attempts())
    turn = Turn(attempt.job_id, attempt.epoch)

    def pass_by(seconds: float) -> None:
        nonlocal now
        for _ in range(round(seconds / POLICY.sweep_interval_s)):
            now += POLICY.sweep_interval_s
            fleet.presence.begin_round(now)

    pass_by(POLICY.offer_timeout_s * 0.6)
    await report.accept(fleet, worker.id, turn.job_id, Accept(epoch=turn.epoch))
    pass_by(POLICY.heartbeat_timeout_s * 0.6)
    assert fleet.presence.old_offers() == []
    running = StatusReport(status=ReportStatus.RUNNING, epoch=turn.epoch)
    await report.report(fleet, worker, turn.job_id, running)
    pass_by(POLICY.heartbeat_timeout_s * 0.6)
    assert (fleet.presence.silent_workers(), fleet.presence.unconfirmed_attempts()) == ({}, [])
    pass_by(POLICY.heartbeat_timeout_s * 0.6)
    assert worker.id in fleet.presence.silent_workers()
    assert fleet.presence.unconfirmed_attempts() == [turn]
