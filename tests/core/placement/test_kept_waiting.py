"""Whom limits and quotas keep waiting: the same as if everybody were asked, and at no cost to whoever is not concerned."""

from collections.abc import Sequence

import pytest

from simpletuner_fleet.core.jobs.job import Attempt, AttemptState, Job, Requirements
from simpletuner_fleet.core.people.quotas import Quota, QuotaAction, QuotaBook, QuotaKind, QuotaScope
from simpletuner_fleet.core.placement.place import (
    Placement,
    limit_of,
    place,
    place_in_order,
    place_next,
    place_on_worker,
)
from simpletuner_fleet.core.placement.unreadable import ALL_READABLE, UnreadableSettings
from simpletuner_fleet.core.placement.usage import UseLedger
from simpletuner_fleet.core.policy import Limits
from tests.core.builders import NOW, POLICY, a_job
from tests.core.placement.test_precedence import TEAMS, WORKERS, Crowd, calls_of
from tests.core.placement.test_shares import Fleet, a_fleet

SUBJECTS = {QuotaScope.PERSON: "u1", QuotaScope.TEAM: "five", QuotaScope.ROLE: "member"}
OF_STARTS = QuotaKind.JOBS_PER_HOUR


class LimitedCrowd(Crowd):
    """Everything happens to them as before, and limits, quotas and roles change besides."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.usage = UseLedger()
        self.usage.advance(self.now)
        self.roles = {f"u{at}": ("member", "admin")[at % 2] for at in range(12)}
        self.limits = Limits()

    def change_limits(self) -> None:
        one = self.random.choice
        self.limits = Limits(
            global_running=one((None, None, 0, 3, 8)),
            user_running=one((None, 0, 1, 2)),
            team_running=one((None, None, 1, 2)),
        )

    def change_quotas(self) -> None:
        quotas = tuple(self.a_quota(at) for at in range(self.random.randrange(4)))
        self.roster.book = QuotaBook(quotas, self.roles, {}, self.usage) if quotas else None
        self.pass_moment()

    def a_quota(self, at: int) -> Quota:
        scope = self.random.choice(tuple(QuotaScope))
        return Quota(
            id=f"q_{at}",
            kind=self.random.choice([one for one in QuotaKind if one is not QuotaKind.STORED_BYTES]),
            scope=scope,
            subject=SUBJECTS.get(scope, ""),
            ceiling=self.random.choice((0, 1, 2, 5)),
            action=self.random.choice((QuotaAction.WAIT, QuotaAction.WAIT, QuotaAction.WARN)),
        )

    def change_role(self) -> None:
        who = f"u{self.random.randrange(12)}"
        self.roles[who] = self.random.choice(("member", "admin"))
        self.roster.lines.freed_owners.add(who)  # as `FleetIndex.user_changed` does

    def change_what_is_readable(self) -> None:
        self.roster.unreadable = self.random.choice(
            (
                *(ALL_READABLE, ALL_READABLE),
                UnreadableSettings(of_teams={"two": "team:two"}),
                UnreadableSettings(of_all=("quota:q_1",)),
            )
        )

    def pass_time(self) -> None:
        super().pass_time()
        self.pass_moment()

    def pass_moment(self) -> None:
        self.usage.advance(self.now)
        if self.roster.book is not None:
            self.roster.book.advance(self.now)

    def _saw(self, before: Attempt | None, after: Attempt | None, job: Job) -> None:
        super()._saw(before, after, job)
        self.usage.see_attempt(before, after, job)

    def live(self) -> None:
        rare = (self.change_limits, self.change_quotas, self.change_role, self.change_what_is_readable)
        if self.random.random() < 0.1:
            self.random.choice(rare)()
        else:
            super().live()

    def may_start(self, class_ids: Sequence[str]) -> list[str]:
        """Returns the classes whose first job nothing keeps waiting, as `limit_of` says of each."""
        heads = ((one, self.roster.lines.head(one)) for one in class_ids)
        return [
            one
            for one, head in heads
            if head and limit_of(self.roster, self.waiting[head], self.limits) is None
        ]


@pytest.mark.parametrize("seed", range(24))
def test_who_is_kept_waiting_is_as_if_each_were_asked_whatever_has_happened(seed: int) -> None:
    crowd = LimitedCrowd(seed)
    roster, kept_at_all, passed = crowd.roster, 0, 0
    for _ in range(300):
        crowd.live()
        name = crowd.random.choice(WORKERS)
        compared = [
            one for *_, one in sorted(filter(None, map(roster.lines.precedence, roster.classes_for(name))))
        ]
        expected = crowd.may_start(compared)
        kept = roster.start_limits(crowd.limits)
        if kept is not None and kept.keep_everybody():
            assert expected == []
            kept_at_all += bool(compared)
            continue
        yielded = list(roster.by_precedence(name, kept))
        assert crowd.may_start(yielded) == expected
        if roster.book is None or all(one.kind is not OF_STARTS for one in roster.book.quotas):
            assert yielded == expected, "nobody is looked at who is kept waiting"
        kept_at_all += len(compared) > len(expected)
        passed += bool(expected)

        def placed(class_id: str) -> Placement | None:
            head = roster.lines.head(class_id)
            answer = place(roster, crowd.waiting[head], crowd.limits) if head else None
            return answer if isinstance(answer, Placement) else None

        everybody = sorted(filter(None, map(roster.lines.precedence, roster.lines.classes_with_jobs())))
        first = next((placement for *_, one in everybody if (placement := placed(one))), None)
        assert place_next(roster, crowd.waiting.__getitem__, crowd.limits) == first
        assert next(place_in_order(roster, crowd.waiting.__getitem__, crowd.limits), None) == first
    assert kept_at_all > 20
    assert passed > 20
    assert set(TEAMS) >= {job.team for job in crowd.waiting.values()}


def an_attempt_elsewhere(at: int) -> Attempt:
    return Attempt(
        id=f"a_{at}",
        job_id=f"j_before_{at}",
        number=1,
        epoch=1,
        worker_id="elsewhere",
        worker_name="elsewhere",
        state=AttemptState.RUNNING,
        offered_at=NOW,
    )


def a_fleet_whose_people_are_at_their_limit(waiting: int) -> Fleet:
    """One machine of `w_0`, and many people who run one job somewhere and wait with others."""
    fleet = a_fleet(1)
    for at in range(waiting):
        fleet.submit("five", f"u{at}", NOW)
        fleet.roster.see_attempt(None, an_attempt_elsewhere(at), f"u{at}", "five")
    return fleet


@pytest.mark.parametrize(
    "limits",
    [Limits(user_running=1), Limits(global_running=1), Limits(team_running=1)],
    ids=["each has a limit", "all have one", "their team has one"],
)
def test_a_worker_that_comes_free_costs_the_same_however_many_a_limit_keeps_waiting(limits: Limits) -> None:
    def cost(waiting: int) -> float:
        fleet = a_fleet_whose_people_are_at_their_limit(waiting)
        job_of = fleet.jobs.__getitem__

        def turn_over() -> None:
            for second in range(20):
                now = NOW + second
                assert list(place_on_worker(fleet.roster, "w_0", job_of, limits, POLICY, now)) == []
                assert place_next(fleet.roster, job_of, limits) is None

        turn_over()  # the first look after a limit has changed goes through all
        return calls_of(turn_over) / 20

    few, many = cost(100), cost(3_000)
    assert many <= 1.1 * few


def test_whose_attempt_ends_is_looked_at_again_and_nobody_else() -> None:
    limits = Limits(user_running=1)

    def cost(waiting: int) -> int:
        fleet = a_fleet_whose_people_are_at_their_limit(waiting)
        job_of = fleet.jobs.__getitem__
        assert place_next(fleet.roster, job_of, limits) is None
        fleet.roster.see_attempt(an_attempt_elsewhere(7), None, "u7", "five")
        placements: list[Placement | None] = []
        calls = calls_of(lambda: placements.append(place_next(fleet.roster, job_of, limits)))
        assert [one.job.requires.owner for one in placements if one] == ["u7"]
        return calls

    assert cost(3_000) <= cost(100) + 40, "but for the logarithm of a heap"


def test_limits_and_quotas_are_asked_once_for_each_who_waits_and_not_for_each_kind_of_job() -> None:
    def cost(quotas: Sequence[Quota], limits: Limits) -> int:
        fleet = a_fleet(1)
        if quotas:
            fleet.roster.book = QuotaBook(quotas, {}, {}, UseLedger())
        for at in range(200):
            requires = Requirements(owner=f"u{at % 5}", min_vram_gb=at / 100)
            job = a_job(f"j_{at}", seq=at, requires=requires, class_id=f"c_{at}")
            fleet.jobs[job.id] = job
            fleet.roster.see_job(None, job)

        def look() -> None:
            assert list(place_on_worker(fleet.roster, "w_0", fleet.jobs.__getitem__, limits, POLICY, NOW))

        look()
        return calls_of(look)

    far = Quota(id="q_1", kind=QuotaKind.GPUS, scope=QuotaScope.EACH, ceiling=100)
    of_all = Quota(id="q_2", kind=QuotaKind.GPU_HOURS_DAY, scope=QuotaScope.ALL, ceiling=100)
    plain = cost((), Limits())
    assert cost((), Limits(user_running=100)) <= 1.2 * plain
    assert cost((far, of_all), Limits()) <= 1.5 * plain
