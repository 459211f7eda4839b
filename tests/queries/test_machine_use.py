"""What the machines of all pools do, as a caller is told who does not see every job."""

from simpletuner_fleet.core.jobs.job import AttemptState, JobState, Outcome
from simpletuner_fleet.core.people.visibility import Visibility, VisibilityScope
from simpletuner_fleet.core.provisioning.machine import Machine, MachineState
from simpletuner_fleet.core.workers.worker import Connection
from simpletuner_fleet.engine.visibility import restricted
from simpletuner_fleet.ports import Tx
from simpletuner_fleet.queries.machine_use import useless_machines
from simpletuner_fleet.store import MemoryStore
from tests.store.samples import BUNDLE, attempt, job, worker

JOINED, ENDED = 1_000.0, 20_000.0
MACHINE = Machine(
    id="m_1",
    pool="p",
    name="gpu-1",
    state=MachineState.JOINED,
    created_at=JOINED,
    asked_at=JOINED,
    joined_at=JOINED,
    provider_id="x",
    worker_id="w_1",
    offered_micros=1_000_000,
    rates=((JOINED, 1_000_000),),
)


async def test_a_machine_that_trained_a_moment_ago_is_idle_for_nobody() -> None:
    def step(tx: Tx) -> None:
        tx.add_worker(worker(1, connection=Connection.CONNECTED, max_jobs=1))
        tx.add_job(job(1, state=JobState.COMPLETED, visibility=Visibility.PRIVATE), BUNDLE)
        tx.add_attempt(
            attempt(
                1,
                state=AttemptState.ENDED,
                outcome=Outcome.COMPLETED,
                offered_at=JOINED + 60,
                accepted_at=JOINED + 60,
                ended_at=ENDED,
            )
        )

    store = MemoryStore()
    await store.write(step)
    stranger = VisibilityScope(ids=frozenset({"u_else"}), looks_after_machines=True)
    for now, idle in ((ENDED + 5, False), (ENDED + 86_400, True)):
        for_all = await store.read(lambda view, now=now: useless_machines(view, [MACHINE], now))  # type: ignore[misc]
        for_one = await store.read(
            lambda view, now=now: useless_machines(restricted(view, stranger), [MACHINE], now)  # type: ignore[misc]
        )
        assert for_one == for_all
        assert bool(for_one) is idle
    await store.close()
