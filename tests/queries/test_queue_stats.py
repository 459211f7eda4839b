"""How many jobs wait for the orchestrator's own machine, however many others wait."""

from simpletuner_fleet.core.jobs.job import Hold, JobState, Requirements, Target
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.queries.queue_stats import queue_stats
from tests.queries.test_overview import connected, fleet_of
from tests.store.samples import BUNDLE, job

HERE_ALONE = Requirements(target=Target.LOCAL)
OTHERS = 1_050


async def test_all_that_can_run_nowhere_else_are_counted_though_thousands_came_after_them() -> None:
    def step(tx: Tx) -> None:
        tx.add_worker(connected(1, local=True, max_jobs=1))
        for number in (1, 2):
            tx.add_job(job(number, requires=HERE_ALONE, class_id="c_here"), BUNDLE)
        held = job(3, state=JobState.BLOCKED, hold=Hold.APPROVAL, requires=HERE_ALONE, class_id="c_here")
        tx.add_job(held, BUNDLE)
        for number in range(4, 4 + OTHERS):
            tx.add_job(job(number, class_id="c_anywhere"), BUNDLE)

    stats = await queue_stats(await fleet_of(step))
    assert stats.own_machine
    assert (stats.own_machine.pending_jobs, stats.by_state["queued"]) == (2, 2 + OTHERS)
