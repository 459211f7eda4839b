"""Who is placed in the step that makes room: workers are kept for nobody in vain, and quotas hold in every step."""

from collections.abc import Callable

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import NotFound
from simpletuner_fleet.core.jobs import lifecycle
from simpletuner_fleet.core.jobs.job import Job, JobState, Requirements
from simpletuner_fleet.core.jobs.lifecycle import End
from simpletuner_fleet.core.money.prices import PriceRule
from simpletuner_fleet.core.people.quotas import Quota, QuotaKind, QuotaScope
from simpletuner_fleet.core.people.teams import TEAM_PREFIX, Team, TeamRules
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import Gpu
from simpletuner_fleet.engine.clock import SteadyClock
from simpletuner_fleet.engine.dispatch import place_waiting_jobs
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.engine.ids import RandomIds
from simpletuner_fleet.engine.memory.causes import EveryClassMayGo, WorkerMayTake
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.memory.setting_documents import LIMITS_SETTING, PRICE_PREFIX, QUOTA_PREFIX
from simpletuner_fleet.engine.streams import StreamHub
from simpletuner_fleet.engine.transaction import Transaction
from simpletuner_fleet.ports import Store
from simpletuner_fleet.store import MemoryStore
from tests.core.builders import NOW, a_gpu, a_job, a_worker

HOUR_S = 3600.0


class Bench:
    """A fleet on a clock that is turned by hand."""

    def __init__(self, store: Store | None = None) -> None:
        self.now = NOW
        clock = SteadyClock(wall=lambda: self.now, monotonic=lambda: self.now)
        self.index = FleetIndex()
        self.fleet = Fleet(
            store or MemoryStore(), self.index, clock, RandomIds(b"s" * 32), StreamHub(), Policy()
        )
        self.submitted = 0

    async def act(self, step: Callable[[Transaction], object]) -> None:
        await self.fleet.act(step)

    async def join(self, name: str, gpus: int | tuple[Gpu, ...] = 1, max_jobs: int = 1) -> None:
        worker = a_worker(name, gpus=gpus, max_jobs=max_jobs, token_hash=name)
        await self.act(lambda transaction: transaction.add_worker(worker))
        await self.listen(name)

    async def listen(self, name: str) -> None:
        await self.act(lambda transaction: transaction.set_reachable(name, True))

    async def submit(self, name: str, owner: str, gpus: int = 1, **fields: object) -> None:
        await self.submit_as(name, Requirements(owner=owner, gpus=gpus), **fields)

    async def submit_as(self, name: str, requires: Requirements, **fields: object) -> None:
        self.submitted += 1
        job = a_job(
            name, seq=self.submitted, created_at=self.now, requires=requires, team=requires.team, **fields
        )
        await self.act(lambda transaction: transaction.add_job(job, b"{}"))

    async def organise(self, key: str, what: Struct) -> None:
        def step(transaction: Transaction) -> None:
            transaction.tx.put_setting(key, msgspec.json.encode(what).decode())
            transaction.organisation_changed()

        await self.act(step)

    async def accept(self, name: str) -> None:
        def step(transaction: Transaction) -> None:
            job = transaction.job(name)
            attempt = transaction.attempt(job.attempt_id or "")
            transaction.apply(lifecycle.accept(job, attempt, incarnation="", now=transaction.now))

        await self.act(step)

    async def limit(self, limits: str) -> None:
        def step(transaction: Transaction) -> None:
            transaction.tx.put_setting(LIMITS_SETTING, limits)
            transaction.limits_changed()

        await self.act(step)

    async def job(self, name: str) -> Job:
        job = await self.fleet.read(lambda view: view.job(name))
        assert job is not None
        return job

    async def waits(self, name: str) -> bool:
        return (await self.job(name)).state is JobState.QUEUED

    @property
    def kept_for(self) -> dict[str, str]:
        return dict(self.index.roster.reservations.held())


async def test_a_worker_is_not_kept_for_a_job_that_its_dead_gpu_keeps_away() -> None:
    bench = Bench()
    await bench.join("w_1", (a_gpu(0), replace(a_gpu(1), unusable="it fell off the bus")), max_jobs=2)
    await bench.submit("j_big", "ann", gpus=2)
    bench.now += HOUR_S
    await bench.listen("w_1")
    await bench.submit("j_small", "bob")
    assert not await bench.waits("j_small")
    assert await bench.waits("j_big")


async def test_a_worker_is_not_kept_for_a_job_that_a_limit_keeps_waiting() -> None:
    bench = Bench()
    await bench.limit('{"user_running": 1}')
    await bench.join("w_0")
    await bench.submit("j_first", "ann")
    await bench.join("w_1", 2, max_jobs=2)
    await bench.submit("j_other", "xenia")
    await bench.submit("j_big", "ann", gpus=2)
    bench.now += HOUR_S
    await bench.listen("w_1")
    await bench.submit("j_small", "bob")
    assert [await bench.waits(name) for name in ("j_first", "j_other", "j_big", "j_small")] == [
        False,
        False,
        True,
        False,
    ]


async def test_a_kept_worker_is_opened_to_others_once_a_limit_keeps_its_job_waiting() -> None:
    bench = Bench()
    await bench.limit('{"user_running": 1}')
    await bench.join("w_1", 2, max_jobs=2)
    await bench.submit("j_other", "xenia")
    await bench.submit("j_big", "ann", gpus=2)
    bench.now += HOUR_S
    await bench.listen("w_1")
    assert bench.kept_for == {"w_1": "j_big"}
    await bench.submit("j_small", "bob")
    assert await bench.waits("j_small"), "the worker is kept for whoever has waited longer"
    await bench.join("w_2")
    assert not await bench.waits("j_small")
    await bench.submit("j_next", "carl")
    await bench.join("w_3")
    assert not await bench.waits("j_next")
    await bench.submit("j_last", "dora")
    assert await bench.waits("j_last")
    await bench.submit("j_second", "ann", priority=50)
    await bench.join("w_4")
    assert not await bench.waits("j_second"), "she runs one now, and may run no other"
    assert not await bench.waits("j_last"), "what was kept for her other job stays idle for nobody"
    assert bench.kept_for == {}


@pytest.mark.parametrize(
    ("key", "what"),
    [
        (
            TEAM_PREFIX + "t_red",
            Team(id="t_red", name="red", created_at=NOW, rules=TeamRules(gpus=("H100*",))),
        ),
        (PRICE_PREFIX + "p_1", PriceRule(id="p_1", price_micros=2_000_000)),
    ],
    ids=["rules of the team", "prices"],
)
async def test_a_kept_worker_is_opened_to_others_once_its_job_may_not_use_it(key: str, what: Struct) -> None:
    bench = Bench()
    await bench.join("w_1", 2, max_jobs=2)
    await bench.submit("j_other", "xenia")
    await bench.submit_as(
        "j_big", Requirements(owner="ann", gpus=2, team="t_red", max_price_micros=1_000_000)
    )
    bench.now += HOUR_S
    await bench.listen("w_1")
    await bench.submit("j_small", "bob")
    assert bench.kept_for == {"w_1": "j_big"}
    assert await bench.waits("j_small")
    await bench.organise(key, what)
    assert not await bench.waits("j_small"), "what was kept for the other job stays idle for nobody"
    assert bench.kept_for == {}


async def test_a_worker_stays_kept_for_its_job_when_a_step_that_changed_the_worker_is_undone() -> None:
    bench = Bench()
    await bench.join("w_1", 2, max_jobs=2)
    await bench.submit("j_other", "xenia")
    await bench.submit("j_big", "ann", gpus=2)
    bench.now += HOUR_S
    await bench.listen("w_1")
    await bench.submit("j_small", "bob")

    def step(transaction: Transaction) -> None:
        worker = transaction.worker("w_1")
        transaction.save_worker(replace(worker, labels={"room": "b"}))
        transaction.worker("w_unknown")

    with pytest.raises(NotFound):
        await bench.act(step)
    await bench.act(lambda transaction: None)
    assert bench.kept_for == {"w_1": "j_big"}


async def test_a_worker_that_was_kept_for_nobody_is_kept_for_nobody_when_a_step_is_undone() -> None:
    bench = Bench()
    await bench.join("w_1", 2, max_jobs=2)
    await bench.submit("j_other", "xenia")
    await bench.submit("j_big", "ann", gpus=2)
    bench.now += HOUR_S

    def step(transaction: Transaction) -> None:
        transaction.set_reachable("w_1", True)
        place_waiting_jobs(transaction)
        assert bench.kept_for == {"w_1": "j_big"}
        transaction.worker("w_unknown")

    with pytest.raises(NotFound):
        await bench.act(step)
    await bench.act(lambda transaction: None)
    assert bench.kept_for == {}


async def test_a_quota_of_hours_holds_in_the_very_step_that_changes_the_organisation() -> None:
    bench = Bench()
    quota = Quota(id="q", kind=QuotaKind.GPU_HOURS_MONTH, scope=QuotaScope.EACH, ceiling=1)

    await bench.organise(QUOTA_PREFIX + quota.id, quota)
    await bench.join("w_1")
    await bench.join("w_2")
    await bench.submit("j_1", "ann")
    await bench.accept("j_1")
    bench.now += 2 * HOUR_S
    await bench.submit("j_2", "ann")
    assert await bench.waits("j_2"), "her first job has used up her hour"
    await bench.act(lambda transaction: transaction.organisation_changed())
    assert await bench.waits("j_2"), "as when somebody makes a team"


async def test_a_new_day_frees_its_hours_also_where_a_change_of_the_organisation_has_failed_before(
    store: Store,
) -> None:
    bench = Bench(store)
    quota = Quota(id="q", kind=QuotaKind.GPU_HOURS_DAY, scope=QuotaScope.EACH, ceiling=1)
    await bench.organise(QUOTA_PREFIX + quota.id, quota)
    await bench.join("w_1")
    await bench.submit("j_1", "ann")
    await bench.accept("j_1")
    bench.now += 2 * HOUR_S

    def complete(transaction: Transaction) -> None:
        job = transaction.job("j_1")
        attempt = transaction.attempt(job.attempt_id or "")
        transaction.apply(lifecycle.completed(job, attempt, End(), now=transaction.now))

    def change_and_fail(transaction: Transaction) -> None:
        transaction.organisation_changed()
        transaction.worker("w_unknown")

    await bench.act(complete)
    await bench.submit("j_2", "ann")
    assert await bench.waits("j_2"), "her first job has used up the hour of this day"
    with pytest.raises(NotFound):
        await bench.act(change_and_fail)
    bench.now = bench.index.usage.day.ends
    await bench.act(lambda transaction: None)
    assert not await bench.waits("j_2")


async def test_a_job_that_has_started_waits_behind_no_fresh_one_that_a_quota_of_starts_keeps_waiting() -> (
    None
):
    bench = Bench()
    quota = Quota(id="q", kind=QuotaKind.JOBS_PER_HOUR, scope=QuotaScope.EACH, ceiling=1)
    await bench.organise(QUOTA_PREFIX + quota.id, quota)
    await bench.join("w_1")
    await bench.submit("j_begun", "ann")
    await bench.submit("j_fresh", "ann", priority=50)

    def take_back(transaction: Transaction) -> None:
        job = transaction.job("j_begun")
        attempt = transaction.attempt(job.attempt_id or "")
        transaction.apply(lifecycle.offer_expired(job, attempt, now=transaction.now))

    await bench.act(take_back)
    assert not await bench.waits("j_begun"), "it counts as one start, however often it is tried"
    assert await bench.waits("j_fresh")


async def test_every_class_is_gone_through_once_for_all_that_a_step_has_freed() -> None:
    """A hundred jobs that are cancelled under a limit went through all who wait a hundred times."""
    bench = Bench()

    def step(transaction: Transaction) -> None:
        for name in ("w_1", "w_2"):
            transaction.consider_every_class()
            transaction.causes.append(WorkerMayTake(name))
        assert transaction.causes.count(EveryClassMayGo()) == 1
        place_waiting_jobs(transaction)
        transaction.consider_every_class()
        assert list(transaction.causes) == [EveryClassMayGo()], "what changes after that is looked at again"

    await bench.act(step)
