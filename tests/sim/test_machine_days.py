"""Days of machines from a provider with every quirk, and an orchestrator that is killed at every step of bringing one."""

from collections import Counter
from collections.abc import Coroutine

import pytest

from simpletuner_fleet.core.provisioning.pool import PoolRequest
from simpletuner_fleet.sim.provisioning.cloud import CallPause
from simpletuner_fleet.sim.provisioning.run import DaysResult, MachineDays, run_days
from simpletuner_fleet.sim.server.store import Changes, CrashPoint

SEEDS = range(12)
DAYS = 0.5
HAPPENS = (
    "machine asked for",
    "machine joined",
    "orchestrator killed",
    "killed at a call",
    "fault:cloud: answer lost",
    "fault:cloud: no list",
    "fault:cloud: not destroyed",
    "fault:cloud: answer to destroy lost",
    "fault:cloud: taken away",
    "notice given",
    "a stranger waited",
    "a job ended at its cost limit",
    "a job with a cost limit completed",
)


def test_no_machine_is_forgotten_doubled_or_left_to_cost_and_every_job_completes() -> None:
    results = [run_days(seed, DAYS) for seed in SEEDS]
    assert [f"seed {one.seed}: {one.violation}" for one in results if one.violation] == []
    counts = sum((one.counts for one in results), Counter[str]())
    assert [kind for kind in HAPPENS if not counts[kind]] == []


@pytest.mark.parametrize("seed", [20, 97, 245, 283])
def test_what_once_broke_a_promise_keeps_it(seed: int) -> None:
    """20: a heartbeat that a goodbye had overtaken. 97: two machines vanished, and the job was held to have ended them.

    245: a machine vanished that ran a job with a cost limit, whose cost counts until the worker is given up.
    283: a job that could not be started began the idle time of its machine anew.
    """
    assert run_days(seed, 2.0).violation is None


class OneJobKilled(MachineDays):
    """One job, one machine, nothing else goes wrong: but the orchestrator dies once, at this very place."""

    def __init__(self, place: str, number: int) -> None:
        super().__init__(7, 0.05, calm=True)
        self.place, self.number, self.seen = place, number, 0
        store = self.orchestrator.store
        store.watch = self._committed
        self._gathered, store._gathered = store._gathered, self._about_to_commit  # type: ignore[method-assign]

    def _drawn_pool(self) -> PoolRequest:
        return PoolRequest(provider="cloud", max_machines=1, idle_s=300.0, boot_s=900.0)

    def _plan(self) -> None:
        self.world.after(5.0, self._submit)

    def _is_here(self, place: str) -> bool:
        if place != self.place:
            return False
        self.seen += 1
        return self.seen == self.number

    def _about_to_commit(self) -> Changes | None:
        changes = self._gathered()
        if changes and _of_machines(changes) and self._is_here("before commit"):
            self.orchestrator.store.crash_at = "before commit"
        return changes

    def _committed(self, changes: Changes) -> None:
        if _of_machines(changes) and self._is_here("after commit"):
            self.orchestrator.store.crash_at = "after commit"

    def _go_on(self, life: int, round_: Coroutine[CallPause, None, None]) -> None:
        if self._is_here("in a call"):
            self.orchestrator.crash()
        super()._go_on(life, round_)


def _of_machines(changes: Changes) -> bool:
    return any(entry.event_type.startswith("machine.") for entry in changes.audit)


POINTS: tuple[CrashPoint, ...] = ("before commit", "after commit")


@pytest.mark.parametrize("place", [*POINTS, "in a call"])
def test_killed_at_every_step_it_brings_one_machine_and_ends_it(place: str) -> None:
    last = {"in a call": 30}.get(place, 6)
    for number in range(1, last + 1):
        story = OneJobKilled(place, number)
        result: DaysResult = story.run()
        assert (place, number, result.violation) == (place, number, None)
        made = [one for one in story.cloud.there.values() if not one.foreign]
        assert len(made) == 1, (place, number, [one.name for one in made])
        assert story.seen >= number


def test_a_seed_of_machine_days_replays_exactly() -> None:
    first, again = run_days(3, 0.2, whole_trace=True), run_days(3, 0.2, whole_trace=True)
    assert first.trace == again.trace
