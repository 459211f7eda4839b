"""Whatever happens to a fleet under limits and quotas, after each step nobody waits whom it would place."""

from collections.abc import Callable, Sequence
from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.decision import Decision
from simpletuner_fleet.core.jobs.job import Attempt, Job, JobState, Requirements
from simpletuner_fleet.core.jobs.lifecycle import End
from simpletuner_fleet.core.jobs.requests import stopping
from simpletuner_fleet.core.jobs.requests.deleting import deleted
from simpletuner_fleet.core.money.prices import PriceRule
from simpletuner_fleet.core.people.accounts import User
from simpletuner_fleet.core.people.quotas import Quota, QuotaAction, QuotaKind, QuotaScope
from simpletuner_fleet.core.placement.ordering import class_id
from simpletuner_fleet.core.placement.place import Placement, place
from simpletuner_fleet.core.placement.shares import FairShare
from simpletuner_fleet.core.policy import Limits, Policy
from simpletuner_fleet.core.workers.audience import Audience
from simpletuner_fleet.engine.dispatch import place_waiting_jobs
from simpletuner_fleet.engine.memory.setting_documents import (
    FAIR_SHARE_SETTING,
    LIMITS_SETTING,
    PRICE_PREFIX,
    QUOTA_PREFIX,
)
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import JobFilter
from simpletuner_fleet.store import MemoryStore
from tests.core.builders import a_job, a_worker
from tests.engine.test_dispatch import Bench

STEPS = 300
PEOPLE = [f"u{at}" for at in range(5)]
TEAMS = ("", "red", "blue")
ROLES = ("member", "admin")
SUBJECTS: dict[QuotaScope, Sequence[str]] = {
    QuotaScope.PERSON: PEOPLE[:2],
    QuotaScope.TEAM: TEAMS[1:],
    QuotaScope.ROLE: ROLES,
}
KINDS = [one for one in QuotaKind if one is not QuotaKind.STORED_BYTES]
CEILINGS: dict[QuotaKind, Sequence[float]] = {
    QuotaKind.MONEY_DAY: (0, 500_000, 2_000_000),
    QuotaKind.MONEY_MONTH: (0, 3_000_000),
    QuotaKind.GPU_HOURS_DAY: (0, 0.5, 2),
    QuotaKind.GPU_HOURS_MONTH: (0, 1, 6),
}
BROKEN = "{broken"
SOMEBODY = Actor("u0", "u0")
MANY_WAIT = 60


class Undone(Exception):
    """Ends a step of which nothing shall stay."""


class Turmoil:
    """All that may keep somebody from starting, or let them, in any order and several at once."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = MemoryStore()
        self.bench = Bench(self.store)
        self.bench.fleet.policy = Policy(placed_at_once=self.random.choice((1, 2, 200)))
        self.made = 0
        self.kept = self.placed = 0

    async def begin(self) -> None:
        def step(transaction: Transaction) -> None:
            for name in PEOPLE:
                user = User(
                    id=name, name=name, role="member", language="en", password_hash="", created_at=1.0
                )
                transaction.tx.add_user(user)
                transaction.user_changed(user)

            for _ in range(6):
                self.join(transaction)

        await self.bench.act(step)
        await self.bench.organise(PRICE_PREFIX + "p_1", PriceRule(id="p_1", price_micros=1_000_000))

    async def live(self) -> list[str]:
        """Lets something happen, and returns what it was."""
        often = (self.submit, self.submit, self.accept, self.accept, self.accept)
        ends = (self.complete, self.complete, self.fail, self.lose, self.readopt)
        workers = (self.join, self.leave, self.listen, self.keep_for_some)
        jobs = (
            self.expire,
            self.hold_over,
            self.edit,
            self.prioritise,
            self.delete,
            self.cancel,
            self.change_role,
        )
        rules = (self.change_limits, self.put_quota, self.drop_quota, self.share, self.clear_rules)
        dice = self.random.random()
        acts: Sequence[Callable[[Transaction], None]] = (
            (*often, *ends)
            if dice < 0.7
            else (*workers, *jobs)
            if dice < 0.95
            else (*rules, self.reprice, self.change_role, self.change_role)
        )
        chosen = [self.random.choice(acts) for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
        undone, lost = self.random.random() < 0.1, self.random.random() < 0.02
        self.bench.now += self.random.choice((0.0, 1.0, 60.0, 900.0, 1.0, 60.0, 4_000.0))
        if self.random.random() < 0.02:
            self.bench.now += 86_400.0

        def step(transaction: Transaction) -> None:
            for act in chosen:
                act(transaction)
                if undone or self.random.random() < 0.3:
                    place_waiting_jobs(transaction)
            if undone:
                raise Undone

        self.store.fail_next_commits(int(lost and not undone))
        try:
            await self.bench.act(step)
        except (Undone, StoreUnavailable):
            assert undone or lost
        while self.bench.fleet.needs_a_step() or self.bench.index.unplaced:  # as the orchestrator does
            await self.bench.act(lambda transaction: None)
        return [
            *(one.__name__ for one in chosen),
            *(["undone"] if undone else []),
            *(["lost"] if lost else []),
        ]

    async def waiting_in_vain(self) -> list[str]:
        index = self.bench.index
        in_vain: list[str] = []

        def look(transaction: Transaction) -> None:
            assert not index.unplaced
            lines = index.roster.lines
            for one in lines.classes_with_jobs():
                job = transaction.job(lines.head(one) or "")
                if isinstance(place(index.roster, job, transaction.limits), Placement):
                    in_vain.append(job.id)
            self.kept += bool(lines.entries)
            self.placed += index.roster.running
            if len(lines.entries) > MANY_WAIT:
                for job_id in sorted(lines.entries)[: MANY_WAIT // 2]:
                    self._cancel(transaction, transaction.job(job_id))

        await self.bench.act(look)
        return in_vain

    # Workers

    def join(self, transaction: Transaction) -> None:
        self.made += 1
        name, gpus = f"w_{self.made}", self.random.choice((1, 1, 2, 3))
        audience = self._audience(1) if self.random.random() < 0.2 else None
        worker = a_worker(name, gpus=gpus, max_jobs=gpus, token_hash=name, audience=audience)
        transaction.add_worker(worker)
        transaction.set_reachable(name, True)

    def leave(self, transaction: Transaction) -> None:
        roster = transaction.index.roster
        idle = [one for one in sorted(roster.workers) if not roster.has_attempts(one)]
        if len(roster.workers) > 6 and idle:
            transaction.delete_worker(transaction.worker(self.random.choice(idle)))

    def listen(self, transaction: Transaction) -> None:
        if workers := sorted(transaction.index.roster.workers):
            transaction.set_reachable(self.random.choice(workers), self.random.random() < 0.8)

    def keep_for_some(self, transaction: Transaction) -> None:
        if workers := sorted(transaction.index.roster.workers):
            worker = transaction.worker(self.random.choice(workers))
            transaction.save_worker(replace(worker, audience=self.random.choice((None, self._audience(2)))))

    def _audience(self, people: int) -> Audience:
        return Audience(people=tuple(self.random.sample(PEOPLE, people)))

    # Jobs

    def submit(self, transaction: Transaction) -> None:
        for _ in range(self.random.randrange(1, 4)):
            self.made += 1
            team, priority = self.random.choice(TEAMS), self.random.choice((0, 0, 50))
            requires = Requirements(
                owner=self.random.choice(PEOPLE), team=team, gpus=self.random.choice((1, 1, 2))
            )
            job = a_job(
                f"j_{self.made}",
                seq=transaction.tx.next_seq(),
                created_at=transaction.now,
                requires=requires,
                team=team,
                priority=priority,
            )
            transaction.add_job(job, b"{}")

    def accept(self, transaction: Transaction) -> None:
        if at_work := self._at_work(transaction, JobState.DISPATCHED):
            transaction.apply(lifecycle.accept(*at_work, incarnation="", now=transaction.now))

    def complete(self, transaction: Transaction) -> None:
        if at_work := self._at_work(transaction, JobState.RUNNING):
            transaction.apply(lifecycle.completed(*at_work, End(), now=transaction.now))

    def fail(self, transaction: Transaction) -> None:
        if at_work := self._at_work(transaction, JobState.RUNNING):
            transaction.apply(lifecycle.failed(*at_work, End(), transaction.policy, now=transaction.now))

    def lose(self, transaction: Transaction) -> None:
        if at_work := self._at_work(transaction, JobState.RUNNING):
            transaction.apply(lifecycle.lost(*at_work, "it is gone", transaction.policy, now=transaction.now))

    def expire(self, transaction: Transaction) -> None:
        if at_work := self._at_work(transaction, JobState.DISPATCHED):
            transaction.apply(lifecycle.offer_expired(*at_work, now=transaction.now))

    def readopt(self, transaction: Transaction) -> None:
        """Lets an attempt that was thought lost come back to life, where its GPUs are free still."""
        roster = transaction.index.roster
        for job in self._jobs(transaction, JobState.QUEUED):
            for last in transaction.tx.attempts_of_job(job.id)[-1:]:
                is_there = last.worker_id in roster.workers and last.accepted_at is not None
                if is_there and last.reason and not roster.occupancy(last.worker_id).gpus & set(last.gpus):
                    transaction.apply(lifecycle.readopted(job, last, now=transaction.now))
                    return

    def hold_over(self, transaction: Transaction) -> None:
        if job := self._one(transaction, JobState.QUEUED):
            transaction.apply(lifecycle.hold_over(job, transaction.now))

    def edit(self, transaction: Transaction) -> None:
        if job := self._one(transaction, JobState.QUEUED):
            requires = replace(job.requires, gpus=self.random.choice((1, 2)))
            edited = replace(job, requires=requires, class_id=class_id(requires))
            transaction.apply(Decision(job=edited))

    def prioritise(self, transaction: Transaction) -> None:
        if job := self._one(transaction, JobState.QUEUED):
            priority = self.random.choice((0, 10, 50))
            transaction.apply(lifecycle.set_priority(job, priority, transaction.policy, SOMEBODY))

    def cancel(self, transaction: Transaction) -> None:
        if job := self._one(transaction, JobState.QUEUED):
            self._cancel(transaction, job)

    def _cancel(self, transaction: Transaction, job: Job) -> None:
        transaction.apply(
            stopping.cancel(job, None, explicit_accept=True, actor=SOMEBODY, now=transaction.now)
        )

    def delete(self, transaction: Transaction) -> None:
        if job := self._one(transaction, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED):
            attempts = transaction.tx.attempts_of_job(job.id)
            transaction.delete_job(job, deleted(job, attempts, transaction.now))

    def _jobs(self, transaction: Transaction, *states: JobState) -> list[Job]:
        jobs = transaction.tx.jobs_page(JobFilter(states=states), None, 1_000)
        return sorted(jobs, key=lambda job: job.seq)

    def _one(self, transaction: Transaction, *states: JobState) -> Job | None:
        jobs = self._jobs(transaction, *states)
        return self.random.choice(jobs) if jobs else None

    def _at_work(self, transaction: Transaction, state: JobState) -> tuple[Job, Attempt] | None:
        job = self._one(transaction, state)
        attempt = transaction.current_attempt(job) if job else None
        return (job, attempt) if job and attempt else None

    # Rules

    def change_limits(self, transaction: Transaction) -> None:
        limits = Limits(
            global_running=self.random.choice((None, None, None, 3, 8)),
            user_running=self.random.choice((None, 1, 1, 2)),
            team_running=self.random.choice((None, None, None, 2)),
        )
        text = msgspec.json.encode(limits).decode() if self.random.random() < 0.95 else BROKEN
        was_unreadable = transaction.organisation.is_unreadable(LIMITS_SETTING)
        transaction.tx.put_setting(LIMITS_SETTING, text)
        transaction.limits_changed()
        if was_unreadable or text == BROKEN:
            transaction.organisation_changed()

    def put_quota(self, transaction: Transaction) -> None:
        scope, kind = self.random.choice(tuple(QuotaScope)), self.random.choice(KINDS)
        quota = Quota(
            id=f"q_{self.random.randrange(4)}",
            kind=kind,
            scope=scope,
            subject=self.random.choice(SUBJECTS.get(scope, ("",))),
            ceiling=self.random.choice(CEILINGS.get(kind, (1, 2, 4))),
            action=self.random.choice((*[QuotaAction.WAIT] * 4, QuotaAction.WARN)),
        )
        text = msgspec.json.encode(quota).decode() if self.random.random() < 0.95 else BROKEN
        transaction.tx.put_setting(QUOTA_PREFIX + quota.id, text)
        transaction.organisation_changed()

    def clear_rules(self, transaction: Transaction) -> None:
        """Leaves one limit at most, so that what keeps people waiting is not always several things at once."""
        for at in range(4):
            transaction.tx.delete_setting(QUOTA_PREFIX + f"q_{at}")
        transaction.organisation_changed()
        self.change_limits(transaction)

    def drop_quota(self, transaction: Transaction) -> None:
        transaction.tx.delete_setting(QUOTA_PREFIX + f"q_{self.random.randrange(4)}")
        transaction.organisation_changed()

    def share(self, transaction: Transaction) -> None:
        fair = FairShare(enabled=self.random.random() < 0.5)
        transaction.tx.put_setting(FAIR_SHARE_SETTING, msgspec.json.encode(fair).decode())
        transaction.organisation_changed()

    def reprice(self, transaction: Transaction) -> None:
        micros = self.random.choice((0, 500_000, 1_000_000, 4_000_000))
        rule = PriceRule(id="p_1", price_micros=micros)
        transaction.tx.put_setting(PRICE_PREFIX + rule.id, msgspec.json.encode(rule).decode())
        transaction.organisation_changed()

    def change_role(self, transaction: Transaction) -> None:
        user = transaction.tx.user(self.random.choice(PEOPLE))
        assert user is not None
        after = replace(user, role=self.random.choice(ROLES))
        transaction.tx.save_user(after)
        transaction.user_changed(after)
        transaction.consider_every_class()


@pytest.mark.parametrize("seed", range(8))
async def test_nobody_waits_whom_the_fleet_would_place_whatever_has_happened(seed: int) -> None:
    turmoil = Turmoil(seed)
    await turmoil.begin()
    for at in range(STEPS):
        happened = await turmoil.live()
        assert await turmoil.waiting_in_vain() == [], (at, happened)
    assert turmoil.kept > STEPS // 2
    assert turmoil.placed > 0
