"""Runs one seed: days of jobs, a provider that behaves badly, an orchestrator that dies at any step."""

from collections import Counter, defaultdict
from collections.abc import Coroutine
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import StoreUnavailable
from simpletuner_fleet.core.jobs.job import Attempt, EndReason, Job, JobState, Outcome
from simpletuner_fleet.core.jobs.submitting.submit_request import SubmitRequest, Submitter
from simpletuner_fleet.core.money.amounts import MICROS, cost_micros
from simpletuner_fleet.core.money.ceilings import pays_for
from simpletuner_fleet.core.money.costs import attempt_cost, cost_of
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.provisioning.money import day_begins
from simpletuner_fleet.core.provisioning.pool import MachinePool, PoolRequest
from simpletuner_fleet.core.workers.worker import Connection
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.orchestrator import submit
from simpletuner_fleet.orchestrator.machines import pools
from simpletuner_fleet.orchestrator.machines.calls import ask_once, destroy_once
from simpletuner_fleet.orchestrator.machines.rounds import ProviderSnapshots, decide_once, take_snapshot
from simpletuner_fleet.providers.contract import ProviderUnsure
from simpletuner_fleet.sim.network import Link, Weather
from simpletuner_fleet.sim.people import ADMIN, People
from simpletuner_fleet.sim.provisioning.brought import BootHabits, BroughtMachines
from simpletuner_fleet.sim.provisioning.cloud import DEAREST_SHARE, LONGEST_CALL_S, CallPause, QuirkyCloud
from simpletuner_fleet.sim.server.orchestrator import Orchestrator
from simpletuner_fleet.sim.server.process import sweep_heard
from simpletuner_fleet.sim.world import Violation, World, drive
from simpletuner_fleet.storage.ownership import FLEET_ID

DAY_S = 86_400.0
HOUR_S = 3600.0
ROUNDS_S = (60.0, 120.0)
"""How often providers are asked, by seed."""
CALLS_S = 180.0
"""How long the calls of one round may take, one after the other."""
LOOKED_AT_EVERY_S = 20.0
CALM_SHARE = 0.25
SPOT_SHARE = 0.5
KEPT_SHARE = 0.4
"""Of the pools that are for one person alone."""
CAPPED_SHARE = 0.3
"""Of the jobs that say what they may cost."""
SHORT = SubmitRequest(config={"run_s": 60.0}, gpus=1, idempotency_key="stranger")
POLICY = Policy(
    heartbeat_interval_s=60.0,
    heartbeat_timeout_s=240.0,
    offer_timeout_s=150.0,
    ping_interval_s=30.0,
    retry_backoff_max_s=60.0,
    checkpoint_wait_s=60.0,
    results_wait_s=200.0,
    max_retries=50,
)


class DaysResult(Struct, kw_only=True):
    seed: int
    days: float
    counts: Counter[str]
    violation: str | None = None
    trace: list[str] = []


class MachineDays:
    def __init__(
        self, seed: int, days: float = 2.0, *, whole_trace: bool = False, calm: bool | None = None
    ) -> None:
        self.world = world = World(seed)
        if whole_trace:
            world.whole_trace = []
        self.days = days
        self.chance = chance = Random(f"machines of {seed}")
        self.calm = chance.random() < CALM_SHARE if calm is None else calm
        """No faults at all: every bound is held to the round."""
        weather = (
            Weather() if self.calm else Weather(request_lost=0.02, answer_lost=0.02, repeated=0.02, slow=0.02)
        )
        self.round_s = Random(f"rounds of {seed}").choice(ROUNDS_S)
        self.request = self._drawn_pool()
        self.orchestrator = Orchestrator(world, POLICY)
        self.orchestrator.restarts_in_s = lambda: chance.choice((0.5, 30.0, 600.0))
        self.cloud = QuirkyCloud(world, chance, 0.0 if self.calm else chance.choice((0.3, 1.0)))
        self.cloud.spot = self.request.market == "spot"
        habits = BootHabits(boot_s=(20.0, self.request.boot_s / 2), persistent=self.request.idle_s > 0)
        self.brought = BroughtMachines(world, self.orchestrator, self.cloud, chance, weather, habits)
        self.cloud.watch = self._check_ceilings
        self.orchestrator.start()
        self.people = People(world, self.orchestrator, Link(world, "people", Weather()), [])
        self.submitted: list[str] = []
        self.of_strangers: list[str] = []
        """Jobs of somebody for whom the pool is not: nothing is ever brought for them, and they run nowhere."""
        self.capped: list[str] = []
        """Jobs that say what they may cost: they complete, or end at their ceiling."""
        self._checked: dict[str, tuple[Job, list[Attempt]]] = {}
        """Those of them that have ended, as they were found to be right."""
        self._caps = Random(f"ceilings of {seed}")
        self.down_s = 0.0
        self._spent: defaultdict[float, float] = defaultdict(float)
        self._looked_at = 0.0
        self._kills_at_call = False

    def _drawn_pool(self) -> PoolRequest:
        chance = self.chance
        return PoolRequest(
            provider="cloud",
            max_machines=chance.choice((1, 2, 4)),
            max_price_micros=chance.choice((None, 8 * MICROS)),
            max_hourly_micros=chance.choice((None, None, 12 * MICROS)),
            max_daily_micros=chance.choice((None, None, 40 * MICROS)),
            over_budget="stop",
            idle_s=chance.choice((0.0, 600.0, 1800.0)),
            boot_s=900.0,
            market="spot" if Random(f"market of {self.world.seed}").random() < SPOT_SHARE else "on_demand",
        )

    # The story

    def run(self) -> DaysResult:
        violation: Violation | None = None
        try:
            with sweep_heard():
                self._make_pool()
                self.orchestrator.on_start = self._start
                self._start(self.orchestrator.life)
                self._plan()
                self.world.after(0.0, self._look)
                self.world.run_until(self.days * DAY_S)
                self.world.faulty = False
                self.world.note("** healed")
                self._rest()
        except Violation as broken:
            violation = broken
            self.world.note(f"** {broken}")
        world = self.world
        return DaysResult(
            seed=world.seed,
            days=world.now / DAY_S,
            counts=world.counts,
            violation=str(violation) if violation else None,
            trace=world.whole_trace if world.whole_trace is not None else list(world.trace),
        )

    def _make_pool(self) -> None:
        fleet = self.orchestrator.fleet
        assert fleet is not None
        drive(fleet.act(lambda transaction: transaction.tx.put_setting(FLEET_ID, "f_sim")))
        pool = drive(pools.save_pool(fleet, "cloud", self.request, ADMIN, lambda pool: None))
        if Random(f"audience of {self.world.seed}").random() < KEPT_SHARE:
            kept = replace(pool, request=replace(pool.request, people=(self.people.users[0].actor.id,)))
            drive(fleet.act(lambda transaction: transaction.tx.put_pool(kept)))
            self.world.after(1.0, lambda: self._send(self.people.users[1], SHORT, self.of_strangers))

    def _plan(self) -> None:
        at = 0.0
        while at < (self.days - 0.2) * DAY_S:
            at += self.chance.choice((60.0, 600.0, 3600.0, 20_000.0)) * self.chance.uniform(0.2, 1.5)
            self.world.after(at, self._submit)
        if self.calm:
            return
        for _ in range(int(12 * self.days)):
            self.world.after(self.chance.uniform(0.0, self.days * DAY_S), self._crash)

    def _submit(self) -> None:
        chance = self.chance
        request = SubmitRequest(
            config={"run_s": chance.choice((60.0, 600.0, 3000.0))},
            gpus=chance.choice((1, 1, 1, 2)),
            idempotency_key=f"k{len(self.submitted)}-{self.world.now}",
        )
        if self._caps.random() < CAPPED_SHARE:
            most = round(self._caps.choice((0.1, 0.5, 2.0)) * self.cloud.base_price * (request.gpus or 1))
            self._send(self.people.users[0], replace(request, max_cost_micros=most), self.capped)
            return
        self._send(self.people.users[0], request, self.submitted)

    def _send(self, by: Submitter, request: SubmitRequest, sent: list[str]) -> None:
        work = self.orchestrator.act(lambda fleet: submit.submit(fleet, by, request, local_enabled=False))

        def answered(outcome: Any) -> None:
            if isinstance(outcome, submit.Submitted):
                sent.append(outcome.job.id)
            else:
                self.world.after(30.0, lambda: self.orchestrator.receive(work, answered))

        self.orchestrator.receive(work, answered)

    def _crash(self) -> None:
        if not self.world.faulty:
            return
        match self.chance.randint(0, 2):
            case 0:
                self.orchestrator.crash()
            case 1:
                self.orchestrator.store.crash_at = self.chance.choice(("before commit", "after commit"))
            case _:
                self._kills_at_call = True
        self.world.counts["orchestrator killed"] += 1

    def _before_call(self) -> None:
        """Kills the orchestrator somewhere in what it is about to ask of its provider."""
        if not self._kills_at_call:
            return
        self._kills_at_call = False
        self.world.counts["killed at a call"] += 1
        if self.chance.random() < 0.5:
            self.orchestrator.store.crash_at = self.chance.choice(("before commit", "after commit"))
        else:
            self.world.after(self.chance.uniform(0.0, LONGEST_CALL_S), self.orchestrator.crash)

    def _rest(self) -> None:
        """Waits until all jobs are complete and nothing of ours is left at the provider, or raises Violation."""
        bound = self.world.now + (4 if self.request.max_daily_micros else 2) * DAY_S
        while why := self._unrest():
            if self.world.now > bound:
                raise Violation("M3", f"no rest: {why}")
            if not self.world.step():
                raise Violation("M3", f"nothing happens any more: {why}")

    def _unrest(self) -> str | None:
        view = self.orchestrator.store.view
        for job_id in self.submitted:
            job = view.job(job_id)
            if job is None or job.state is not JobState.COMPLETED:
                return f"{job_id} is {job.state if job else 'gone'}"
        for job_id in self.capped:
            job = view.job(job_id)
            if job is None or not (job.terminal or self._has_nothing_left(job)):
                return f"{job_id} is {job.state if job else 'gone'}"
        left = self.cloud.of_ours()
        if left:
            return f"{left[0].id} ({left[0].name}) still costs"
        rows = view.machines_since(float("inf"))
        return f"{rows[0].id} is {rows[0].state}" if rows else None

    def _has_nothing_left(self, job: Job) -> bool:
        """Tells whether the job waits, and its ceiling no longer pays for every machine that it could get."""
        dearest = round(DEAREST_SHARE * self.cloud.base_price) * job.requires.gpus
        room = job.requires.room_micros
        return job.state is JobState.QUEUED and room is not None and not pays_for(room, dearest)

    # The provisioner's rounds

    def _start(self, life: int) -> None:
        self.world.after(1.0, lambda: self._round(life))

    def _round(self, life: int) -> None:
        fleet = self.orchestrator.fleet
        if fleet is None or self.orchestrator.life != life:
            return
        self._go_on(life, self._one_round(fleet))

    async def _one_round(self, fleet: Fleet) -> None:
        pool = await fleet.read(lambda view: view.pool("cloud"))
        assert pool is not None
        seen = await self._snapshots(fleet, pool)
        calls = await decide_once(fleet, seen)
        for machine in calls.destroy:
            self._before_call()
            await destroy_once(fleet, self.cloud, machine)
        for machine_id in calls.ask:
            self._before_call()
            await ask_once(fleet, self.cloud, pool, machine_id, {})
            self.world.counts["machine asked for"] += 1

    async def _snapshots(self, fleet: Fleet, pool: MachinePool) -> ProviderSnapshots:
        try:
            snapshot = await take_snapshot(
                self.cloud, fleet.clock.now(), with_offers=fleet.has_waiting_jobs()
            )
        except ProviderUnsure as error:
            return ProviderSnapshots(snapshots={}, troubles={pool.name: str(error)})
        return ProviderSnapshots(snapshots={pool.name: snapshot}, troubles={})

    def _go_on(self, life: int, round_: Coroutine[CallPause, None, None]) -> None:
        """Runs the round to its next call; it ends with the orchestrator's process."""
        if self.orchestrator.fleet is None or self.orchestrator.life != life:
            self.world.counts["killed within a round"] += 1
            round_.close()
            return
        pause = self.orchestrator.work(lambda: _next_pause(round_))
        if isinstance(pause, CallPause):
            self.world.after(pause.seconds, lambda: self._go_on(life, round_))
            return
        round_.close()
        if isinstance(pause, Exception) and not isinstance(pause, StoreUnavailable):
            self.world.note(f"round ended: {pause!r}")
        self.world.after(self.round_s, lambda: self._round(life))

    # The questions

    def _check_ceilings(self) -> None:
        ours = self.cloud.of_ours()
        if len(ours) > self.request.max_machines:
            raise Violation("M4", f"{len(ours)} machines, {self.request.max_machines} allowed")
        hourly = sum(machine.hourly_micros for machine in ours)
        if self.request.max_hourly_micros is not None and hourly > self.request.max_hourly_micros:
            raise Violation("M4", f"{hourly} an hour, {self.request.max_hourly_micros} allowed")
        for machine in ours:
            if (
                self.request.max_price_micros is not None
                and machine.hourly_micros > self.request.max_price_micros
            ):
                raise Violation("M4", f"{machine.id} costs {machine.hourly_micros}")

    def _check_strangers(self) -> None:
        view = self.orchestrator.store.view
        for job_id in self.of_strangers:
            job = view.job(job_id)
            if job is None or job.attempts:
                raise Violation("M6", f"{job_id} of a stranger came to a machine of the pool")
            if any(machine.for_job == job_id for machine in view.machines_since(float("inf"))):
                raise Violation("M6", f"a machine was brought for {job_id} of a stranger")
            self.world.counts["a stranger waited"] += 1

    def _check_capped(self) -> None:
        """Checks that no job costs more than it may, but for the time that ending it takes.

        Faults extend that by their own time. A worker that is silent cannot be told to stop, and what it does counts
        until it is given up.
        """
        view, now = self.orchestrator.store.view, self.orchestrator.wall_now()
        beyond_s = POLICY.cancel_grace_s + 2 * POLICY.sweep_interval_s + LOOKED_AT_EVERY_S
        if not self.calm:
            beyond_s += self.down_s + 3 * POLICY.heartbeat_timeout_s + POLICY.checkpoint_wait_s
        for job_id in self.capped:
            job, attempts = view.job(job_id), view.attempts_of_job(job_id)
            if job is None or job.max_cost_micros is None:
                raise Violation("M7", f"{job_id} has lost its ceiling")
            if self._checked.get(job_id) != (job, attempts):
                self._check_cost(job, job.max_cost_micros, attempts, now, beyond_s)
            self.world.counts["a job ended at its cost limit"] += job.reason == EndReason.COST_LIMIT
            self.world.counts["a job with a cost limit completed"] += job.state is JobState.COMPLETED

    def _check_cost(
        self, job: Job, max_cost_micros: int, attempts: list[Attempt], now: float, beyond_s: float
    ) -> None:
        over = sum(attempt_cost(one, now).micros for one in attempts if not one.live)
        if job.spent_micros != over:
            raise Violation("M7", f"{job.id} says {job.spent_micros}, its attempts cost {over}")
        cost = cost_of(attempts, now)
        dearest = max((rate for one in attempts for rate in rates_of(one)), default=0)
        silent_s = POLICY.heartbeat_timeout_s * sum(self._was_silent(one) for one in attempts)
        allowed = max_cost_micros + cost_micros(dearest, 0.0, beyond_s + silent_s)
        if cost is not None and cost.micros > allowed:
            raise Violation("M7", f"{job.id} cost {cost.micros} of {max_cost_micros}")
        if job.terminal and not any(one.live for one in attempts):
            self._checked[job.id] = (job, attempts)

    def _was_silent(self, attempt: Attempt) -> bool:
        if not attempt.live:
            return attempt.outcome is Outcome.LOST
        worker = self.orchestrator.store.view.worker(attempt.worker_id)
        return worker is None or worker.connection is not Connection.CONNECTED

    def _look(self) -> None:
        now = self.world.now
        self._check_strangers()
        self._check_capped()
        elapsed_s, self._looked_at = now - self._looked_at, now
        if self.orchestrator.fleet is None:
            self.down_s += elapsed_s
        self.brought.note_use()
        wall = self.orchestrator.wall_now()
        for machine in self.cloud.of_ours():
            self._spent[day_begins(wall)] += machine.hourly_micros * elapsed_s / HOUR_S
            self._check_bill(machine.id)
        daily = self.request.max_daily_micros
        if daily is not None and self._spent[day_begins(wall)] > daily:
            raise Violation("M4", f"{self._spent[day_begins(wall)]:.0f} today, {daily} allowed")
        self.world.after(LOOKED_AT_EVERY_S, self._look)

    def _check_bill(self, machine_id: str) -> None:
        """Checks that no machine costs for longer than it may be idle, or boot, and one round more.

        Faults extend that by their own time.
        """
        machine = self.cloud.there[machine_id]
        useless_s = self.world.now - machine.useful_at
        may_s = max(self.request.idle_s, 60.0) if machine.joined else self.request.boot_s
        bound_s = may_s + self.round_s + CALLS_S
        if self.down_s:  # whoever was there before gets the full time to be heard again
            bound_s += self.down_s + 2 * POLICY.heartbeat_timeout_s
        if not self.calm:
            bound_s += 2 * POLICY.heartbeat_timeout_s + self.request.boot_s + 3600.0
        if useless_s > bound_s:
            raise Violation("M5", f"{machine.id} has cost for {useless_s:.0f} s and did nothing")


def rates_of(attempt: Attempt) -> list[int]:
    """Returns every price that the attempt had."""
    return [attempt.hourly_micros or 0, *(rate for _, rate in attempt.rates)]


def _next_pause(round_: Coroutine[CallPause, None, None]) -> CallPause | None:
    try:
        return round_.send(None)
    except StopIteration:
        return None


def run_days(seed: int, days: float = 2.0, *, whole_trace: bool = False) -> DaysResult:
    return MachineDays(seed, days, whole_trace=whole_trace).run()
