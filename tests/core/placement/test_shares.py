"""Fair share on virtual time: real rosters, the real rule of placement, and no clock but the test's own."""

from collections import Counter
from collections.abc import Iterator
from heapq import heappop, heappush
from random import Random

import pytest
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, JobState, Outcome, Requirements
from simpletuner_fleet.core.placement.explain import Explanation
from simpletuner_fleet.core.placement.place import Placement, place_in_order, place_on_worker, why_waiting
from simpletuner_fleet.core.placement.reasons import Code, Kind
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.placement.shares import LARGEST_EXPONENT, Shares
from simpletuner_fleet.core.placement.usage import Charge, Going
from simpletuner_fleet.core.policy import NO_LIMITS
from tests.core.builders import NOW, POLICY, a_job, a_worker

DAY_S = 86_400.0
WEIGHTS = {"five": 5.0, "three": 3.0, "two": 2.0}


class Fleet(Struct):
    """Machines of one GPU, teams that always have jobs waiting, and what each has used."""

    roster: Roster
    jobs: dict[str, Job] = {}
    ends: list[tuple[float, str]] = []
    attempts: dict[str, Attempt] = {}
    used: Counter[str] = Counter()
    waited: dict[str, float] = {}
    made: int = 0

    def submit(self, team: str, owner: str, now: float, priority: int = 0) -> None:
        self.made += 1
        requires = Requirements(owner=owner, team=team)
        job = a_job(f"j_{self.made}", requires=requires, created_at=now, priority=priority)
        job = replace(job, seq=self.made, owner=owner, team=team)
        self.jobs[job.id] = job
        self.roster.see_job(None, job)

    def feed(self, worker_id: str, now: float, lasts_s: float) -> Job | None:
        shares = self.roster.lines.shares
        if shares is not None:
            shares.advance(now)
        for decision in place_on_worker(
            self.roster, worker_id, self.jobs.__getitem__, NO_LIMITS, POLICY, now
        ):
            assert isinstance(decision, Placement)
            return self.start(decision, now, lasts_s)
        return None

    def start(self, placement: Placement, now: float, lasts_s: float) -> Job:
        job, share = self.jobs[placement.job.id], placement.shares[0]
        attempt = Attempt(
            id=f"a_{job.id}",
            job_id=job.id,
            number=1,
            epoch=job.seq,
            worker_id=share.worker.id,
            worker_name=share.worker.id,
            state=AttemptState.RUNNING,
            offered_at=now,
            accepted_at=now,
            gpus=(share.gpus[0].uuid,),
        )
        self._saw(None, attempt, job)
        running = replace(job, state=JobState.RUNNING, worker_id=share.worker.id)
        self.jobs[job.id] = running
        self.roster.see_job(job, running)
        self.attempts[share.worker.id] = attempt
        self.waited[job.id] = now - job.created_at
        heappush(self.ends, (now + lasts_s, share.worker.id))
        return job

    def end(self, now: float, worker_id: str) -> Job:
        attempt = self.attempts.pop(worker_id)
        job = self.jobs.pop(attempt.job_id)
        ended = replace(attempt, state=AttemptState.ENDED, outcome=Outcome.COMPLETED, ended_at=now)
        self._saw(attempt, ended, job)
        self.used[job.team] += int(now - attempt.offered_at)
        return job

    def _saw(self, before: Attempt | None, after: Attempt | None, job: Job) -> None:
        self.roster.see_attempt(before, after, job.owner, job.team)
        if self.roster.lines.shares is not None:
            self.roster.lines.shares.see_attempt(before, after, job)


def a_fleet(machines: int, *, half_life_s: float = DAY_S) -> Fleet:
    roster = Roster()
    for at in range(machines):
        roster.put_worker(a_worker(f"w_{at}"))
    roster.lines.shares = Shares(half_life_s, WEIGHTS, NOW)
    return Fleet(roster)


def lengths(seed: int) -> Iterator[float]:
    random = Random(seed)
    while True:
        yield random.uniform(600.0, 7200.0)


def run(fleet: Fleet, until: float, lasts: Iterator[float], loads: dict[str, tuple[str, ...]]) -> None:
    """Every end makes room for one job, and its owner submits the next at once: nobody's line is ever empty."""
    for worker_id in sorted(fleet.roster.workers):
        fleet.feed(worker_id, NOW, next(lasts))
    while fleet.ends and fleet.ends[0][0] < until:
        now, worker_id = heappop(fleet.ends)
        job = fleet.end(now, worker_id)
        if job.owner in loads[job.team]:
            fleet.submit(job.team, job.owner, now)
        fleet.feed(worker_id, now, next(lasts))


@pytest.mark.parametrize("seed", [1, 2])
def test_three_teams_under_load_get_five_to_three_to_two(seed: int) -> None:
    fleet = a_fleet(20)
    people = {"five": ("ann", "bob"), "three": ("cat",), "two": ("dan", "eve", "fay")}
    for team, members in people.items():
        for owner in members:
            for _ in range(40):
                fleet.submit(team, owner, NOW)
    run(fleet, NOW + 10 * DAY_S, lengths(seed), people)
    whole = sum(fleet.used.values())
    parts = {team: used / whole for team, used in fleet.used.items()}
    assert parts == pytest.approx({"five": 0.5, "three": 0.3, "two": 0.2}, abs=0.02)
    # Nobody starves: with equal people in a line of forty each waits for its turn, and not for ever.
    assert max(fleet.waited.values()) < 5 * DAY_S
    assert len(fleet.waited) > 3_000


def test_machines_that_come_free_in_one_moment_are_shared_out_in_that_moment() -> None:
    one_by_one, all_at_once = a_fleet(10), a_fleet(10)
    for fleet in (one_by_one, all_at_once):
        for team in ("two", "three", "five"):
            for _ in range(20):
                fleet.submit(team, "ann", NOW)
    begun = [one_by_one.feed(worker_id, NOW, 1.0) for worker_id in sorted(one_by_one.roster.workers)]
    assert Counter(job.team for job in begun if job) == {"five": 5, "three": 3, "two": 2}
    placed = []
    for placement in place_in_order(all_at_once.roster, all_at_once.jobs.__getitem__, NO_LIMITS):
        all_at_once.start(placement, NOW, 1.0)
        placed.append(placement.job.team)
    assert Counter(placed) == {"five": 5, "three": 3, "two": 2}


def test_without_shares_everybody_goes_in_the_order_in_which_they_came() -> None:
    fleet = a_fleet(5)
    fleet.roster.lines.shares = None
    for at, owner in enumerate(("late", "late", "early", "late", "early", "early")):
        fleet.submit("", owner, NOW - at)
    placed = []
    for placement in place_in_order(fleet.roster, fleet.jobs.__getitem__, NO_LIMITS):
        fleet.start(placement, NOW, 1.0)
        placed.append(placement.job.id)
    assert placed == ["j_6", "j_5", "j_4", "j_3", "j_2"]


def test_people_of_one_team_share_alike_whatever_they_submit() -> None:
    fleet = a_fleet(10)
    for owner, jobs in (("greedy", 300), ("modest", 20)):
        for _ in range(jobs):
            fleet.submit("five", owner, NOW)
    run(fleet, NOW + 5 * DAY_S, lengths(3), {"five": ("greedy", "modest")})
    used = fleet.roster.lines.shares
    assert used is not None
    greedy, modest = (used.key(Requirements(team="five", owner=owner))[1] for owner in ("greedy", "modest"))
    assert greedy == pytest.approx(modest, rel=0.05)


def test_a_share_that_nobody_wants_is_lent_and_comes_back() -> None:
    fleet = a_fleet(10)
    for _ in range(100):
        fleet.submit("two", "dan", NOW)
    run(fleet, NOW + DAY_S, lengths(4), {"two": ("dan",)})
    assert len(fleet.attempts) == 10, "the whole fleet works for who alone wants it"
    for _ in range(20):
        fleet.submit("five", "ann", NOW + DAY_S)
    started: list[str] = []
    while len(started) < 12:
        now, worker_id = heappop(fleet.ends)
        fleet.end(now, worker_id)
        job = fleet.feed(worker_id, now, 3600.0)
        assert job
        started.append(job.team)
    assert set(started) == {"five"}, "everything that comes free is theirs until they have had their share"


def test_priority_is_a_head_start_inside_a_share_and_buys_nothing_outside() -> None:
    fleet = a_fleet(1)
    shares = fleet.roster.lines.shares
    assert shares is not None
    shares.take_charges([Charge("dan", "two", 1, NOW - 7200.0, NOW)])
    fleet.submit("two", "dan", NOW, priority=1000)
    fleet.submit("five", "ann", NOW)
    fleet.submit("five", "ann", NOW, priority=10)
    order = []
    for turn in range(3):
        job = fleet.feed("w_0", NOW + turn, 1.0)
        assert job
        order.append(job.id)
        fleet.end(NOW + turn + 0.5, "w_0")
    assert order == ["j_3", "j_2", "j_1"]


def test_use_fades_by_half_and_no_sum_overflows() -> None:
    shares = Shares(100.0, {}, 0.0)
    shares.take_charges([Charge("old", "a", 2, -10.0, 0.0), Charge("new", "b", 1, 90.0, 100.0)])
    shares.advance(100.0)
    old, new = (shares.key(Requirements(team=team, owner=""))[0] for team in ("a", "b"))
    assert old == pytest.approx(new)
    shares.take_going([Going("ann", "c", 1, 100.0, 99.0)])
    later = 100.0 * (LARGEST_EXPONENT + 50)
    shares.advance(later)
    steady = shares.key(Requirements(team="c", owner="ann"))[1]
    assert steady / shares.key(Requirements(team="c", owner=""))[0] == pytest.approx(1.0)
    assert shares.used_part("c") == pytest.approx(1.0)


def test_a_job_whose_team_is_over_its_share_says_so_with_figures_and_without_names() -> None:
    fleet, shares = Fleet(Roster()), Shares(DAY_S, WEIGHTS, NOW)
    fleet.roster.put_worker(a_worker("w_0"))
    fleet.roster.lines.shares = shares
    shares.take_charges(
        [Charge("dan", "two", 1, NOW - 3600.0, NOW), Charge("ann", "five", 1, NOW - 1200.0, NOW)]
    )
    fleet.submit("two", "dan", NOW)
    assert fleet.feed("w_0", NOW, 1000.0)
    fleet.submit("two", "dan", NOW)

    def said() -> Explanation:
        return why_waiting(fleet.roster, fleet.jobs["j_2"], NO_LIMITS, NOW)

    assert said().code is Code.ALL_MATCHING_BUSY, "nobody else wants it: a share that nobody wants is lent"
    fleet.submit("five", "ann", NOW)
    over = said()
    assert (over.code, over.kind) == (Code.OVER_SHARE, Kind.WAIT)
    assert (over.params["used_percent"], over.params["share_percent"], over.params["teams_ahead"]) == (
        75,
        20,
        1,
    )
    assert "75 % of what was used of late, and its share is 20 %" in over.sentence
    assert "five" not in over.sentence
    within = why_waiting(fleet.roster, fleet.jobs["j_3"], NO_LIMITS, NOW)
    assert within.code is Code.ALL_MATCHING_BUSY


def test_what_is_undone_was_never_used() -> None:
    job = replace(a_job(requires=Requirements(owner="ann", team="five")), team="five")
    attempt = Attempt(
        id="a",
        job_id=job.id,
        number=1,
        epoch=1,
        worker_id="w",
        worker_name="w",
        state=AttemptState.RUNNING,
        offered_at=NOW,
        accepted_at=NOW,
        gpus=("g",),
    )
    ended = replace(attempt, state=AttemptState.ENDED, ended_at=NOW + 60)
    shares = Shares(DAY_S, WEIGHTS, NOW)
    for before, after in ((None, attempt), (attempt, ended), (ended, attempt), (attempt, None)):
        shares.see_attempt(before, after, job)
    shares.advance(NOW + 1000)
    assert shares.key(job.requires) == pytest.approx((0.0, 0.0), abs=1e-6)
