"""What is told of the orchestrator's own machine: the jobs that wait for it, and its GPUs."""

from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Hold, JobState, Requirements, Target
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.queries.queue_stats import queue_stats
from tests.queries.test_overview import connected, fleet_of, gpus
from tests.store.samples import BUNDLE, attempt, job

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


async def test_a_gpu_is_available_only_where_a_job_could_be_given_it() -> None:
    unusable = replace(gpus(3)[2], unusable="unhealthy")
    own = connected(1, local=True, max_jobs=2, gpus=(*gpus(2), unusable))
    beside = connected(2, gpus=gpus(1))
    held = frozenset({beside.gpus[0].uuid})

    def step(tx: Tx) -> None:
        tx.add_worker(own)
        tx.add_worker(beside)
        tx.add_job(job(1, state=JobState.RUNNING, worker_id=beside.id, attempt_id="a_1", attempts=1), BUNDLE)
        tx.add_attempt(attempt(1, worker_id=beside.id, gpus=tuple(held)))

    machine = (await queue_stats(await fleet_of(step))).own_machine
    assert machine
    assert (machine.running_jobs, machine.total_gpus) == (0, 3)
    assert (machine.allocated_gpus, machine.available_gpus) == ([0], [1])
