"""An attempt whose row cannot be read may still run: its GPUs are given to nobody."""

from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.store.rows.live_rows import LiveRows
from tests.core.builders import a_worker, an_attempt, holding


def test_the_gpus_of_an_attempt_that_cannot_be_read_are_not_free() -> None:
    worker = a_worker(gpus=1)
    uuid = worker.gpus[0].uuid
    job = holding(JobState.RUNNING, gpus=(uuid,))
    index, rows = FleetIndex(), LiveRows()
    rows.observer = index
    rows.load([worker], [job], [])
    assert index.roster.occupancy(worker.id).gpus == {uuid}
    rows.load([worker], [job], [an_attempt(gpus=(uuid,))])
    assert index.roster.occupancy(worker.id).gpus == {uuid}
    assert index.roster.running == 1
