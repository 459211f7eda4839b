"""Who is next: as if all who wait were compared, and at a cost that does not grow with how many they are."""

import sys
from collections.abc import Callable
from math import log
from random import Random
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, JobState, Outcome, Requirements
from simpletuner_fleet.core.placement.ordering import class_id
from simpletuner_fleet.core.placement.roster.roster import Roster
from simpletuner_fleet.core.placement.shares import LARGEST_EXPONENT, Shares
from simpletuner_fleet.core.placement.usage import Charge, Going
from tests.core.builders import NOW, a_job, a_worker
from tests.core.placement.test_shares import DAY_S, WEIGHTS, Fleet, a_fleet

TEAMS = ("five", "three", "two", "")
WORKERS = ("large", "small")


class Crowd:
    """Many people of several teams, with jobs of several kinds, to whom everything happens in any order."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.roster = Roster()
        for at, name in enumerate(WORKERS):
            self.roster.put_worker(a_worker(name, gpus=2 - at))
        self.now = NOW
        self.waiting: dict[str, Job] = {}
        self.going: dict[str, tuple[Job, Attempt]] = {}
        self.made = 0

    def submit(self) -> None:
        self.made += 1
        requires = Requirements(
            owner=f"u{self.random.randrange(12)}",
            team=self.random.choice(TEAMS),
            gpus=self.random.choice((1, 1, 2)),
        )
        rank = self.now - 100.0 * self.random.randrange(4)
        job = a_job(f"j_{self.made}", requires=requires, created_at=self.now)
        job = replace(
            job,
            seq=self.made,
            team=requires.team,
            owner=requires.owner,
            rank=rank,
            class_id=class_id(requires),
        )
        self.waiting[job.id] = job
        self.roster.see_job(None, job)

    def leave(self) -> None:
        if self.waiting:
            job = self.waiting.pop(self.random.choice(sorted(self.waiting)))
            self.roster.see_job(job, replace(job, state=JobState.CANCELLED))

    def begin(self) -> None:
        """An attempt somewhere else, so that whoever waits is moved back by it."""
        if not self.waiting:
            return
        job = self.waiting.pop(self.random.choice(sorted(self.waiting)))
        self.roster.see_job(job, replace(job, state=JobState.RUNNING))
        attempt = Attempt(
            id=f"a_{job.id}",
            job_id=job.id,
            number=1,
            epoch=job.seq,
            worker_id="elsewhere",
            worker_name="elsewhere",
            state=AttemptState.RUNNING,
            offered_at=self.now,
            accepted_at=self.now,
            gpus=("g",) * job.requires.gpus,
        )
        self.going[job.id] = (job, attempt)
        self._saw(None, attempt, job)

    def end(self) -> None:
        if self.going:
            job, attempt = self.going.pop(self.random.choice(sorted(self.going)))
            ended = replace(attempt, state=AttemptState.ENDED, outcome=Outcome.COMPLETED, ended_at=self.now)
            self._saw(attempt, self.random.choice((ended, None)), job)

    def pass_time(self) -> None:
        """Mostly forward; at times back, or so far that sums are brought down."""
        self.now += self.random.choice((1.0, 600.0, 7200.0, -300.0, 300 * DAY_S))
        if self.roster.lines.shares:
            self.roster.lines.shares.advance(self.now)

    def count_anew(self) -> None:
        """As whoever changes the teams makes it be: what goes on is known from the beginning."""
        weights = {team: self.random.uniform(0.5, 5.0) for team in WEIGHTS}
        shares = Shares(DAY_S, weights, self.now)
        shares.take_going(
            Going(job.owner, job.team, len(attempt.gpus), attempt.accepted_at, attempt.offered_at)
            for job, attempt in self.going.values()
        )
        self.roster.lines.shares = self.random.choice((None, shares))

    def _saw(self, before: Attempt | None, after: Attempt | None, job: Job) -> None:
        self.roster.see_attempt(before, after, job.owner, job.team)
        if self.roster.lines.shares:
            self.roster.lines.shares.see_attempt(before, after, job)

    def live(self) -> None:
        acts = (self.submit, self.submit, self.submit, self.leave, self.begin, self.end, self.pass_time)
        self.random.choice((*acts, *acts, *acts, self.count_anew))()


@pytest.mark.parametrize("seed", range(12))
def test_the_order_is_as_if_everybody_were_compared_whatever_has_happened(seed: int) -> None:
    crowd = Crowd(seed)
    roster = crowd.roster
    for _ in range(300):
        crowd.live()
        name = crowd.random.choice(WORKERS)
        compared = sorted(filter(None, map(roster.lines.precedence, roster.classes_for(name))))
        asked = crowd.random.randrange(1, 6)
        line = roster.by_precedence(name)
        first = [one for _, one in zip(range(asked), line, strict=False)]
        line.close()
        assert first == [class_id for *_, class_id in compared[:asked]]
    assert list(roster.by_precedence("large")) == [
        class_id
        for *_, class_id in sorted(filter(None, map(roster.lines.precedence, roster.classes_for("large"))))
    ]
    for alike in roster.lines.alike.values():
        assert len(alike.line) <= 2 * len(alike.noted) + 65, "what is left over does not pile up"


def test_the_order_holds_when_sums_are_brought_down() -> None:
    fleet = a_fleet(1)
    shares = fleet.roster.lines.shares
    assert shares
    shares.take_charges([Charge("ann", "five", 8, NOW - 30 * DAY_S, NOW)])
    shares.take_going([Going("bob", "five", 1, NOW, NOW)])
    for owner in ("ann", "bob"):
        fleet.submit("five", owner, NOW)

    def owners() -> list[str]:
        return [fleet.roster.lines.requires(one).owner for one in fleet.roster.by_precedence("w_0")]

    assert owners() == ["bob", "ann"]
    shares.advance(NOW + (LARGEST_EXPONENT + 1) * DAY_S)
    assert owners() == ["ann", "bob"], "what she used has faded, and he uses on"


def calls_of(act: Callable[[], object]) -> int:
    """How many functions are called: the same on every machine, however busy."""
    count = 0

    def note(_frame: FrameType, event: str, _about: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def a_full_fleet(waiting: int, people: int) -> Fleet:
    fleet = a_fleet(1)
    for at in range(waiting):
        fleet.submit(("five", "three", "two")[at % 3], f"u{at % people}", NOW)
    fleet.feed("w_0", NOW, 1.0)
    return fleet


@pytest.mark.parametrize("alone", [True, False], ids=["jobs of one person", "people with a job each"])
def test_a_placement_among_ten_thousand_costs_no_more_than_the_logarithm_allows(alone: bool) -> None:
    def cost(waiting: int) -> float:
        fleet = a_full_fleet(waiting, 1 if alone else waiting)

        def turn_over() -> None:
            for second in range(1, 21):
                fleet.end(NOW + second, "w_0")
                assert fleet.feed("w_0", NOW + second, 1.0)

        return calls_of(turn_over) / 20

    few, many = cost(100), cost(10_000)
    assert many <= few * log(10_000) / log(100)
