"""The index against the plain recomputation from everything it was told."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Hold, Job, JobState, Requirements, Target
from simpletuner_fleet.core.jobs.lifecycle import End
from simpletuner_fleet.core.jobs.requests import stopping
from simpletuner_fleet.core.placement.matching import Occupancy, allocate, is_open, preference, why_never
from simpletuner_fleet.core.placement.ordering import place_of, rank
from simpletuner_fleet.core.placement.roster import roster
from simpletuner_fleet.core.placement.roster.lines import waits
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.placement.team_allowlist import TeamAllowlist
from simpletuner_fleet.core.workers.worker import AdminState, Connection, Worker
from tests.core.builders import NOW, POLICY, a_job, a_worker, an_attempt

CLASSES = [
    Requirements(),
    Requirements(gpus=2),
    Requirements(gpus=0, owner="u_1"),
    Requirements(target=Target.LOCAL),
    Requirements(target=Target.WORKER, labels=(("team", "nlp"),)),
    Requirements(trainer="command", owner="u_1"),
    Requirements(datasets=(("d_1", 50), ("d_2", 30))),
    Requirements(max_price_micros=2_000_000),
]
slots = st.integers(0, 3)
any_job = st.integers(0, 10**6)


def reserved_for(roster: Roster, worker_id: str) -> str | None:
    kept = roster.reservations.copied().get(worker_id)
    return kept[0] if kept else None


class FleetAgainstPlainRecomputation(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.roster = Roster()
        self.workers: dict[str, Worker] = {}
        self.jobs: dict[str, Job] = {}
        self.attempts: dict[str, Attempt] = {}
        self.unreachable: set[str] = set()
        self.epoch = 0

    # What happens.

    @rule(
        slot=slots,
        gpus=st.integers(0, 3),
        max_jobs=st.integers(1, 2),
        local=st.booleans(),
        team=st.sampled_from([{}, {"team": "nlp"}]),
        trainers=st.sampled_from([("simpletuner",), ("simpletuner", "command")]),
        datasets=st.sampled_from([(), ("d_1",), ("d_2", "d_1")]),
        cache=st.sampled_from([0, 80]),
    )
    def register(self, slot: int, **facts: Any) -> None:
        worker = a_worker(f"w_{slot}", gpus=facts["gpus"])
        self._put(
            replace(
                worker,
                max_jobs=facts["max_jobs"],
                local=facts["local"],
                labels=facts["team"],
                trainers=facts["trainers"],
                datasets=facts["datasets"],
                data_limit_bytes=facts["cache"],
            )
        )

    @rule(slot=slots, connection=st.sampled_from(Connection), admin=st.sampled_from(AdminState))
    def change_standing(self, slot: int, connection: Connection, admin: AdminState) -> None:
        if worker := self.workers.get(f"w_{slot}"):
            self._put(replace(worker, connection=connection, admin=admin))

    @rule(slot=slots, reachable=st.booleans())
    def change_reachable(self, slot: int, reachable: bool) -> None:
        if f"w_{slot}" in self.workers:
            self.roster.set_reachable(f"w_{slot}", reachable)
            (self.unreachable.discard if reachable else self.unreachable.add)(f"w_{slot}")

    @rule(slot=slots)
    def leave(self, slot: int) -> None:
        self.roster.drop_worker(f"w_{slot}")
        self.workers.pop(f"w_{slot}", None)
        self.unreachable.discard(f"w_{slot}")

    @rule(
        requires=st.sampled_from(CLASSES),
        hold=st.sampled_from([Hold.NONE, Hold.NONE, Hold.APPROVAL]),
        created_at=st.integers(0, 3),
        priority=st.integers(-1, 1),
    )
    def submit(self, requires: Requirements, hold: Hold, created_at: int, priority: int) -> None:
        number = len(self.jobs)
        job = a_job(
            f"j_{number}",
            requires=requires,
            seq=number,
            hold=hold,
            state=JobState.BLOCKED if hold else JobState.QUEUED,
            created_at=NOW + created_at,
            priority=priority,
            retry_on_failure=True,
        )
        self.jobs[job.id] = job
        self.roster.see_job(None, job)

    @rule(which=any_job, priority=st.integers(-1, 1))
    def move(self, which: int, priority: int) -> None:
        if job := self._one(which, lambda job: not job.terminal):
            self._save(replace(job, priority=priority, rank=rank(job.created_at, priority, POLICY)))

    @rule(which=any_job, hold=st.sampled_from([Hold.NONE, Hold.BACKOFF, Hold.START_TIME]))
    def hold_back(self, which: int, hold: Hold) -> None:
        if job := self._one(which, lambda job: job.state is JobState.QUEUED):
            self._save(replace(job, hold=hold))

    @rule(which=any_job)
    def give_up_waiting(self, which: int) -> None:
        if job := self._one(which, lambda job: job.state in {"queued", "blocked"}):
            self._save(replace(job, state=JobState.CANCELLED, hold=Hold.NONE))

    @rule(which=any_job)
    def place(self, which: int) -> None:
        job = self._one(which, waits)
        picked = self.roster.pick_worker(job) if job else None
        if job and picked:
            self.epoch += 1
            decision = lifecycle.offer(
                job,
                *picked,
                attempt_id=f"a_{self.epoch}",
                epoch=self.epoch,
                upload_token_hash="",
                now=NOW,
            )
            self._apply(decision)

    @rule(which=any_job, how=st.sampled_from(["completed", "released", "failed"]))
    def end(self, which: int, how: str) -> None:
        job = self._one(which, lambda job: job.state is JobState.DISPATCHED)
        if job is None:
            return
        attempt = self.attempts[job.attempt_id or ""]
        self._apply(lifecycle.accept(job, attempt, incarnation="", now=NOW))
        job, attempt = self.jobs[job.id], self.attempts[attempt.id]
        match how:
            case "completed":
                self._apply(lifecycle.completed(job, attempt, End(), now=NOW))
            case "released":
                self._apply(stopping.released(job, attempt, "", POLICY, now=NOW))
            case _:
                self._apply(lifecycle.failed(job, attempt, End(), POLICY, now=NOW))

    @rule(which=any_job, slot=slots)
    def reserve(self, which: int, slot: int) -> None:
        if (job := self._one(which, waits)) and f"w_{slot}" in self.workers:
            self.roster.reservations.make(f"w_{slot}", job)

    # What must hold.

    @invariant()
    def occupancy_is_what_live_attempts_hold(self) -> None:
        for number in range(4):
            assert self.roster.occupancy(f"w_{number}") == self._occupancy(f"w_{number}")
        live = [attempt for attempt in self.attempts.values() if attempt.live]
        owners = [self.jobs[attempt.job_id].owner for attempt in live]
        assert self.roster.running == len(live)
        assert self.roster.running_by_owner == {owner: owners.count(owner) for owner in owners}

    @invariant()
    def lines_hold_exactly_the_jobs_that_wait(self) -> None:
        waiting = [job for job in self.jobs.values() if waits(job)]
        with_jobs = {job.line for job in waiting}
        assert set(self.roster.lines.classes_with_jobs()) == with_jobs
        for job in self.jobs.values():
            line = [other for other in waiting if other.line == job.line]
            assert self.roster.lines.count(job.line) == len(line)
            assert self.roster.lines.position(job.rank) == sum(other.rank <= job.rank for other in waiting)
        for name in with_jobs:
            line = [job for job in waiting if job.line == name]
            assert self.roster.lines.head(name) == min(line, key=place_of).id

    @invariant()
    def each_worker_is_open_to_the_classes_it_fits(self) -> None:
        lines = {job.line: job.requires for job in self.jobs.values() if waits(job)}
        for worker in self.workers.values():
            fits = {id for id, requires in lines.items() if why_never(worker, requires) is None}
            assert set(self.roster.classes_for(worker.id)) == fits
            assert self.roster.is_open(worker.id) is self._is_open(worker)

    @invariant()
    def the_picked_worker_is_the_best_there_is(self) -> None:
        for job in filter(waits, self.jobs.values()):
            candidates = {
                worker.id: preference(worker, self._occupancy(worker.id), job.requires)
                for worker in self.workers.values()
                if self._is_open(worker)
                and not self._kept_from(worker.id, job)
                and why_never(worker, job.requires) is None
                and allocate(worker, self._occupancy(worker.id), job.requires) is not None
            }
            picked = self.roster.pick_worker(job)
            assert (picked is not None) is bool(candidates)
            if picked:
                worker, gpus = picked
                assert candidates[worker.id] == min(candidates.values())
                assert gpus == allocate(worker, self._occupancy(worker.id), job.requires)
                assert self.roster.try_worker(job, worker.id) == picked

    @invariant()
    def only_jobs_that_wait_keep_a_worker_and_only_one_that_serves(self) -> None:
        reserved = {id: job_id for id in self.workers if (job_id := reserved_for(self.roster, id))}
        assert len(set(reserved.values())) == len(reserved)
        assert all(waits(self.jobs[job_id]) for job_id in reserved.values())

    # Plain means.

    def _kept_from(self, worker_id: str, job: Job) -> bool:
        keeper = reserved_for(self.roster, worker_id)
        return keeper is not None and place_of(self.jobs[keeper]) < place_of(job)

    def _put(self, worker: Worker) -> None:
        self.workers[worker.id] = worker
        self.roster.put_worker(worker)

    def _one(self, which: int, fits: Any) -> Job | None:
        matching = [job for job in self.jobs.values() if fits(job)]
        return matching[which % len(matching)] if matching else None

    def _save(self, job: Job) -> None:
        before = self.jobs[job.id]
        self.jobs[job.id] = job
        self.roster.see_job(before, job)

    def _apply(self, decision: Decision) -> None:
        if decision.attempt:
            known = self.attempts.get(decision.attempt.id)
            self.attempts[decision.attempt.id] = decision.attempt
            owner = self.jobs[decision.attempt.job_id].owner
            self.roster.see_attempt(known, decision.attempt, owner)
        if decision.job:
            self._save(decision.job)

    def _occupancy(self, worker_id: str) -> Occupancy:
        live = [a for a in self.attempts.values() if a.live and a.worker_id == worker_id]
        held = {uuid for attempt in live for uuid in attempt.gpus}
        mine = {gpu.uuid for gpu in self.workers[worker_id].gpus} if worker_id in self.workers else set()
        return Occupancy(len(live), frozenset(held & mine), listens=worker_id not in self.unreachable)

    def _is_open(self, worker: Worker) -> bool:
        return is_open(worker, self._occupancy(worker.id))


TestFleetAgainstPlainRecomputation = FleetAgainstPlainRecomputation.TestCase
TestFleetAgainstPlainRecomputation.settings = settings(max_examples=100, stateful_step_count=40)


BIG = a_job("j_big", requires=Requirements(gpus=2))
SMALL = a_job("j_small", seq=2)


def _reserved_fleet() -> Roster:
    fleet = Roster()
    fleet.put_worker(a_worker(gpus=2, max_jobs=2))
    for job in (BIG, SMALL):
        fleet.see_job(None, job)
    fleet.reservations.make("w_1", BIG)
    return fleet


def test_a_reserved_worker_is_kept_for_its_job() -> None:
    fleet = _reserved_fleet()
    assert fleet.pick_worker(SMALL) is None
    assert fleet.try_worker(SMALL, "w_1") is None
    assert fleet.pick_worker(BIG) is not None


def test_a_second_job_cannot_take_a_reservation_over() -> None:
    fleet = _reserved_fleet()
    fleet.reservations.make("w_1", SMALL)
    assert reserved_for(fleet, "w_1") == BIG.id


def test_a_job_reserves_one_worker_at_a_time() -> None:
    fleet = _reserved_fleet()
    fleet.put_worker(a_worker("w_2", gpus=2))
    fleet.reservations.make("w_2", BIG)
    assert reserved_for(fleet, "w_2") is None


@pytest.mark.parametrize(
    "change",
    [
        {"connection": Connection.OFFLINE},
        {"admin": AdminState.DRAINING},
        {"gpus": 1},
        {"labels": {"team": "nlp"}},
    ],
)
def test_a_worker_that_stops_serving_or_changes_is_not_kept_for_anybody(change: dict[str, Any]) -> None:
    fleet = _reserved_fleet()
    fleet.put_worker(a_worker(**{"gpus": 2, "max_jobs": 2, **change}))
    assert reserved_for(fleet, "w_1") is None


def test_a_placed_cancelled_or_held_job_gives_its_reservation_up() -> None:
    for change in ({"state": JobState.DISPATCHED}, {"state": JobState.CANCELLED}, {"hold": Hold.START_TIME}):
        fleet = _reserved_fleet()
        fleet.see_job(BIG, replace(BIG, **change))
        assert reserved_for(fleet, "w_1") is None
        assert fleet.pick_worker(SMALL) is not None


def test_a_worker_that_left_is_not_kept_for_anybody() -> None:
    fleet = _reserved_fleet()
    fleet.drop_worker("w_1")
    fleet.drop_worker("w_1")
    assert reserved_for(fleet, "w_1") is None
    assert fleet.pick_worker(BIG) is None


def test_a_large_open_fleet_is_not_walked_to_its_end() -> None:
    fleet = Roster()
    for number in range(roster.CANDIDATES_COMPARED * 3):
        fleet.put_worker(a_worker(f"w_{number}", gpus=4))
    fleet.put_worker(a_worker("w_tight", gpus=1))
    fleet.see_job(None, SMALL)
    picked = fleet.pick_worker(SMALL)
    assert picked is not None
    assert picked[0].id != "w_tight"


def test_what_a_worker_gives_is_worked_out_anew_once_its_gpus_or_the_rules_are_others() -> None:
    fleet = Roster()
    worker = a_worker(gpus=2, max_jobs=2)
    job = a_job("j_team", requires=Requirements(team="tm_1"))
    fleet.put_worker(worker)
    fleet.see_job(None, job)

    def given() -> list[str]:
        picked, tried = fleet.pick_worker(job), fleet.try_worker(job, "w_1")
        assert picked == tried
        return [gpu.uuid for gpu in picked[1]] if picked else []

    first, second = (gpu.uuid for gpu in worker.gpus)
    assert given() == [first]
    running = an_attempt(gpus=(first,))
    fleet.see_attempt(None, running, "u_1")
    assert given() == [second], "another job holds the first"
    fleet.see_attempt(running, replace(running, state=AttemptState.ENDED), "u_1")
    assert given() == [first]
    broken = (replace(worker.gpus[0], unusable="it fell off the bus"), worker.gpus[1])
    fleet.put_worker(replace(worker, gpus=broken))
    assert given() == [second]
    both = (broken[0], replace(worker.gpus[1], unusable="it is too hot"))
    fleet.put_worker(replace(worker, gpus=both))
    assert given() == []
    mixed = (worker.gpus[0], replace(worker.gpus[1], name="NVIDIA H100"))
    fleet.put_worker(replace(worker, gpus=mixed))
    assert given() == [first]
    fleet.set_allowlists({"tm_1": TeamAllowlist(workers=(), gpus=("*h100*",))})
    assert given() == [second], "its team may use no other any more"


def test_of_two_attempts_on_a_worker_each_holds_and_frees_its_own_gpus() -> None:
    fleet = Roster()
    fleet.put_worker(a_worker(gpus=2, max_jobs=2))
    first = an_attempt("a_1", gpus=("GPU-w_1-0",))
    second = an_attempt("a_2", gpus=("GPU-w_1-1",))
    for attempt in (first, second):
        fleet.see_attempt(None, attempt, "u_1")
    assert fleet.occupancy("w_1") == Occupancy(2, frozenset({"GPU-w_1-0", "GPU-w_1-1"}))
    fleet.see_attempt(first, replace(first, state=AttemptState.ENDED), "u_1")
    assert fleet.occupancy("w_1") == Occupancy(1, frozenset({"GPU-w_1-1"}))
    assert fleet.running_by_owner == {"u_1": 1}


def test_an_attempt_that_ends_after_its_worker_was_deleted_leaves_nothing_behind() -> None:
    fleet = Roster()
    fleet.put_worker(a_worker())
    fleet.see_attempt(None, an_attempt(), "u_1")
    fleet.drop_worker("w_1")
    fleet.see_attempt(an_attempt(), an_attempt(state=AttemptState.ENDED), "u_1")
    assert fleet.occupancy("w_1") == Occupancy()
    assert (fleet.running, fleet.running_by_owner) == (0, {})


def test_whether_a_worker_that_is_gone_was_reachable_is_not_kept() -> None:
    fleet = Roster()
    fleet.put_worker(a_worker())
    fleet.drop_worker("w_1")
    fleet.set_reachable("w_1", False)
    fleet.put_worker(a_worker())
    assert fleet.occupancy("w_1").listens
