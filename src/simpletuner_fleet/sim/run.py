"""Runs one seed from the first event to rest."""

from collections import Counter
from random import Random
from typing import Any

from msgspec import Struct

from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import JobState
from simpletuner_fleet.core.placement.reasons import Code
from simpletuner_fleet.core.restoring import least_epoch
from simpletuner_fleet.core.workers.worker import Connection, WorkerType
from simpletuner_fleet.engine.memory.index import FleetIndex
from simpletuner_fleet.engine.memory.standing import UNKNOWN_STANDING
from simpletuner_fleet.orchestrator.workers import administer
from simpletuner_fleet.orchestrator.workers.administer import CreateWorker
from simpletuner_fleet.queries.explainer import Explainer
from simpletuner_fleet.sim import draw
from simpletuner_fleet.sim.agent import SimulatedAgent
from simpletuner_fleet.sim.byzantine import Byzantine
from simpletuner_fleet.sim.chaos import Chaos
from simpletuner_fleet.sim.checks.checkers import (
    dependency_problems,
    index_problems,
    outcome_problems,
    result_problems,
    store_problems,
    unplaced_problems,
    unrest,
)
from simpletuner_fleet.sim.checks.commit_watch import CommitWatch, early_losses, untrue_validations
from simpletuner_fleet.sim.checks.truth import Truth
from simpletuner_fleet.sim.disasters import Disasters
from simpletuner_fleet.sim.machine import MachineKind, SimulatedMachine
from simpletuner_fleet.sim.network import Link, Weather
from simpletuner_fleet.sim.older_agent import OlderAgent
from simpletuner_fleet.sim.people import ADMIN, People
from simpletuner_fleet.sim.publications import LONGEST_WAIT_AT_REST_S, Publishing
from simpletuner_fleet.sim.restores import Restores
from simpletuner_fleet.sim.server.orchestrator import EVERY_ENTRY, Orchestrator
from simpletuner_fleet.sim.server.process import Process, sweep_heard
from simpletuner_fleet.sim.server.serving import Serving
from simpletuner_fleet.sim.server.store import Changes
from simpletuner_fleet.sim.world import Violation, World, drive

INDEX_CHECKED_EVERY = 16
RESTORED_SHARE = 0.15
FAN_OUT_SHARE = 0.15
A_YEAR_S = 3.2e7
ELECTED_AFTER_S = 0.5
SLICES = 5
"""More often no job here is given back by its time limit: each time is a step forward."""


class Result(Struct, kw_only=True):
    seed: int
    trace_hash: str
    events: int
    virtual_s: float
    counts: Counter[str]
    jobs: Counter[str]
    edges: Counter[str]
    outcomes: Counter[str]
    violation: str | None = None
    invariant: str | None = None
    trace: list[str] = []


class Scenario:
    """Runs the simulation of one seed.

    It builds the fleet, injects faults, lets the fleet come to rest, and checks whether every invariant held.
    """

    def __init__(self, seed: int, *, size: draw.Size | None = None, whole_trace: bool = False) -> None:
        self.world = world = World(seed)
        if whole_trace:
            world.whole_trace = []
        chance = world.chance
        self.size = size or draw.size(seed)
        self.policy = draw.policy(chance, self.size)
        self.weather = Weather(
            request_lost=chance.choice((0.0, 0.02, 0.1)),
            answer_lost=chance.choice((0.0, 0.02, 0.1)),
            repeated=chance.choice((0.0, 0.02, 0.1)),
            slow=chance.choice((0.0, 0.02, 0.1)),
            latest_repeat_s=self.size.latest_repeat_s,
        )
        self.truth = Truth()
        self.extra = Random(f"more of {seed}")
        """Of its own: how many orchestrators there are and what is restored changes nothing else of a seed."""
        self.orchestrator = Orchestrator(world, self.policy, draw.clock_rates(self.extra, self.size))
        self.orchestrator.restarts_in_s = lambda: chance.choice((0.5, 5.0, 60.0, 150.0))
        self.watch = CommitWatch(self.orchestrator.store.view, self.policy)
        self.orchestrator.store.watch = self._committed
        self.orchestrator.after_step = self._stepped
        self._steps = 0
        self._touched: set[str] = set()
        """Workers whose rows have changed since streams were last looked at."""
        self._index_checked: tuple[Any, ...] = ()
        self._hostile: set[str] = set()
        self.orchestrator.start()
        if len(self.orchestrator.processes) > 1:
            world.run_until(ELECTED_AFTER_S)
        self.machines = [self._machine(kind) for kind in draw.kinds(world, self.size)]
        if any(machine.kind.host for machine in self.machines):
            world.counts["two workers share a machine's GPUs"] += 1
        link = Link(world, "people", self.weather)
        self.people = People(world, self.orchestrator, link, self.machines, self.size)
        self.publishing = Publishing(world, self.orchestrator, self.people.link)
        self.publishing.begin()
        self.people.publishes = self.publishing.requested
        self.chaos = Chaos(world, self.orchestrator, self.people, self.machines, self._clone)
        self.orchestrator.on_revoked = self._revoked

    def run(self) -> Result:
        violation: Violation | None = None
        try:
            with sweep_heard():
                self._suffer()
                self._rest()
            self._judge()
        except Violation as broken:
            violation = broken
            self.world.note(f"** {broken}")
        world = self.world
        jobs = self.orchestrator.store.view.job_counts()
        return Result(
            seed=world.seed,
            trace_hash=world.trace_hash,
            events=world.events,
            virtual_s=world.now,
            counts=world.counts,
            jobs=Counter(jobs),
            edges=self.watch.edges,
            outcomes=self.watch.outcomes,
            violation=str(violation) if violation else None,
            invariant=violation.invariant if violation else None,
            trace=world.whole_trace if world.whole_trace is not None else world.trace,
        )

    # Three acts

    def _suffer(self) -> None:
        world, chance, size = self.world, self.world.chance, self.size
        for machine in self.machines:
            world.after(chance.uniform(0.0, size.boots_within_s), machine.boot)
        for_s = chance.uniform(*size.timeouts) * self.policy.heartbeat_timeout_s
        self.chaos.plan(for_s, size)
        self.publishing.plan_asks(for_s)
        if self.people.fan_outs.random() < FAN_OUT_SHARE:
            begins_s = self.people.fan_outs.uniform(0.0, for_s * size.jobs_until)
            world.after(begins_s, self.people.submit_fan_out)
        Disasters(world, self.chaos, self.extra, self._restores()).plan(for_s)
        if chance.random() < size.hostile_share:
            self._let_one_misbehave(for_s)
        world.run_until(for_s)
        self.chaos.heal(size)

    def _rest(self) -> None:
        """Waits until everything is at rest, or raises Violation after what is left to run, retry and time out."""
        world = self.world
        bound = world.now + self._longest_rest_s()
        while True:
            for _ in range(self.size.rest_asked_every):
                world.step()
            if world.faulty or self._why_not_at_rest() is None:
                return
            if world.now > bound:
                raise Violation("L1", f"no rest after {bound:.0f} s: {self._why_not_at_rest()}")

    def _longest_rest_s(self) -> float:
        view, policy = self.orchestrator.store.view, self.policy
        waiting = [job for id in self._every_job() if (job := view.job(id)) and not job.terminal]
        per_try_s = 190.0 + 2 * policy.heartbeat_timeout_s + policy.retry_backoff_max_s
        per_try_s += policy.checkpoint_wait_s
        tries = sum(
            1 + max(0, job.max_retries + 1 - job.charged) + (SLICES if job.on_time_limit == "requeue" else 0)
            for job in waiting
        )
        results_s = policy.results_wait_s + LONGEST_WAIT_AT_REST_S
        return 600.0 + results_s + 3 * policy.heartbeat_timeout_s + tries * per_try_s

    def _judge(self) -> None:
        view = self.orchestrator.store.view
        problems = store_problems(view, self.people.acked)
        witnesses = self.orchestrator.fleet.witnesses.values() if self.orchestrator.fleet else ()
        problems += self.watch.log_problems(view.audit_range(0, EVERY_ENTRY), witnesses)
        unfenced = {machine.worker_id for machine in self.machines if machine.kind.older} | self._hostile
        problems += outcome_problems(view, self._every_job(), self.truth, unfenced)
        problems += result_problems(view, self._every_job(), self.truth)
        for job_id in self._every_job():
            job = view.job(job_id)
            problems += dependency_problems(view, job) if job else []
        problems += index_problems(self.orchestrator.index, view)
        for job_id, epoch in self.people.cancelled.items():
            job = view.job(job_id)
            if job is None or job.state not in (JobState.CANCELLED, JobState.COMPLETED) or job.epoch != epoch:
                problems.append(("S7", f"{job_id} was cancelled and is {job.state if job else 'gone'}"))
        problems += self._untrue_reasons()
        problems += self.publishing.problems_at_rest()
        if problems:
            raise Violation(*problems[0])

    def _untrue_reasons(self) -> list[tuple[str, str]]:
        view = self.orchestrator.store.view
        explainer = Explainer(view, UNKNOWN_STANDING)
        problems = []
        for job_id in self._every_job():
            job = view.job(job_id)
            if job is None or job.terminal:
                continue
            code = explainer.explain(job, 0, self.world.now).code
            self.world.counts[f"waits:{code}"] += 1
            if code in (
                Code.ALL_MATCHING_BUSY,
                Code.BEHIND_OTHERS,
                Code.OVER_SHARE,
                Code.RETRY_BACKOFF,
                Code.START_TIME,
                Code.NOT_WAITING,
            ):
                problems.append(("L1", f"{job_id} is {job.state} at rest because {code}"))
        return problems

    def _why_not_at_rest(self) -> str | None:
        if self.orchestrator.is_being_restored or self.orchestrator.fleet is None:
            return "no orchestrator works"
        view = self.orchestrator.store.view
        for machine in self.machines:
            agent = machine.agent
            if agent is None:
                if not machine.retired and view.worker(machine.worker_id) is not None:
                    return f"{machine.kind.name} has no agent"
                continue
            worker = view.worker(machine.worker_id)
            if worker is None:
                continue
            if machine.spool:
                return f"{machine.kind.name} has undelivered reports"
            if worker.connection is not Connection.CONNECTED or agent.stream is None:
                return f"{machine.kind.name} is {worker.connection}"
        if self.truth.anything_runs:
            return "a trainer runs that nobody knows of" if not view.live_attempts() else "a trainer runs"
        return unrest(view, self._every_job()) or self.publishing.unrest()

    def _every_job(self) -> list[str]:
        return self.watch.submitted

    # Watching

    def _committed(self, changes: Changes) -> None:
        orchestrator = self.orchestrator
        self.watch.saw(changes, sender=orchestrator.sender)
        self._touched.update(changes.workers)
        problems = early_losses(
            changes.audit,
            self.world.now,
            orchestrator.last_read,
            orchestrator.last_named,
            orchestrator.working.started_at,
            self.policy,
        )
        if hasattr(self, "publishing"):
            problems += self.publishing.problems_of(changes)
        for job_id in changes.jobs:
            self._cancelled_stays_so(job_id)
        problems += untrue_validations(changes, self.truth, self._hostile)
        if problems:
            raise Violation(*problems[0])
        for entry in changes.audit:
            self.world.note(f"{entry.event_type} {entry.target_id} {entry.details.get('worker_id', '')}")

    def _cancelled_stays_so(self, job_id: str) -> None:
        epoch = self.people.cancelled.get(job_id) if hasattr(self, "people") else None
        job = self.orchestrator.store.view.job(job_id)
        if epoch is not None and job is not None and job.epoch != epoch:
            raise Violation("S7", f"{job_id} was cancelled at epoch {epoch} and is offered at {job.epoch}")

    def _stepped(self, process: Process) -> None:
        orchestrator = self.orchestrator
        if process.fleet is None or process is not orchestrator.lead:
            return
        if self._touched or process.serving.opened:
            self._check_streams(process.serving)
        self._steps += 1
        if self._steps % INDEX_CHECKED_EVERY == 0:
            self._check_index(orchestrator.index)

    def _check_streams(self, serving: Serving) -> None:
        """Checks the streams of workers whose row has changed, and new streams."""
        touched, self._touched = self._touched, set()
        view = self.orchestrator.store.view
        for stream in serving.of_workers(touched):
            worker = view.worker(stream.worker_id)
            if worker is None or worker.token_hash != stream.token_hash:
                raise Violation(
                    "S14", f"{stream.worker_id} is served on a token that is not its own any more"
                )

    def _check_index(self, index: FleetIndex) -> None:
        """Compares what is indexed with what is stored, unless neither has changed since the last check."""
        store = self.orchestrator.store
        state = (store.disturbed, index.roster, frozenset(index.reachable), index.unplaced)
        if state == self._index_checked:
            return
        self._index_checked = state
        problems = index_problems(index, store.view) + unplaced_problems(index, store.view)
        if problems:
            raise Violation(*problems[0])

    def _revoked(self) -> None:
        """Notes revoked tokens just before the answer: from now on nobody may connect with them."""
        self.orchestrator.believed_no_more.update(self.watch.taken_away)
        self.watch.taken_away.clear()

    def _restored(self, accepted: list[Turn]) -> None:
        orchestrator = self.orchestrator
        entries = orchestrator.store.view.audit_range(0, EVERY_ENTRY)
        self.watch.restored(entries, least_epoch(orchestrator.wall_now() + A_YEAR_S))
        self.watch.taken_away.clear()
        self.publishing.restored()
        self.truth.is_restored(accepted)
        for worker in orchestrator.store.view.workers():
            if worker.token_hash in orchestrator.believed_no_more:
                raise Violation("R2", f"the restore gives {worker.id} back a token that was taken away")

    # Building

    def _restores(self) -> Restores | None:
        if self.extra.random() > RESTORED_SHARE:
            return None
        restores = Restores(self.world, self.orchestrator, self.people)
        restores.on_restored = self._restored
        return restores

    def _machine(self, kind: MachineKind) -> SimulatedMachine:
        orchestrator = self.orchestrator
        assert orchestrator.fleet is not None
        request = CreateWorker(
            name=kind.name,
            worker_type=WorkerType.PERSISTENT if kind.persistent else WorkerType.EPHEMERAL,
            labels=kind.labels,
        )
        worker, token = drive(administer.create_worker(orchestrator.fleet, request, ADMIN))
        machine = SimulatedMachine(
            self.world, orchestrator, self.truth, kind, Link(self.world, kind.name, self.weather), token
        )
        machine.worker_id = worker.id
        machine.make_agent = OlderAgent if kind.older else SimulatedAgent
        return machine

    def _clone(self, original: SimulatedMachine) -> SimulatedMachine:
        kind = MachineKind(
            name=f"{original.kind.name}-copy{len(self.chaos.clones)}",
            gpus=original.kind.gpus,
            max_jobs=original.kind.max_jobs,
        )
        link = Link(self.world, kind.name, self.weather)
        clone = SimulatedMachine(self.world, self.orchestrator, self.truth, kind, link, original.token)
        clone.worker_id = original.worker_id
        clone.make_agent = SimulatedAgent
        return clone

    def _let_one_misbehave(self, for_s: float) -> None:
        orchestrator, chance = self.orchestrator, self.world.chance
        assert orchestrator.fleet is not None
        request = CreateWorker(name="stranger")
        worker, token = drive(administer.create_worker(orchestrator.fleet, request, ADMIN))
        self._hostile.add(worker.id)
        stranger = Byzantine(self.world, orchestrator, Link(self.world, "stranger", self.weather), token)
        self.world.after(chance.uniform(0.0, for_s * self.size.hostile_within), stranger.come_in)
        self.world.after(for_s, stranger.leave)
        for _ in range(chance.randint(*self.size.lies)):
            self.world.after(chance.uniform(0.0, for_s), stranger.misbehave)


def run_seed(seed: int, *, size: draw.Size | None = None, whole_trace: bool = False) -> Result:
    """Runs a world of the size that the seed draws, unless a size is given."""
    return Scenario(seed, size=size, whole_trace=whole_trace).run()
