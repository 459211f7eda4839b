"""Simulates users and administrators: they submit, change their minds, lose answers and ask again."""

from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from simpletuner_fleet.core.errors import FleetError, IdempotencyMismatch
from simpletuner_fleet.core.events import Actor
from simpletuner_fleet.core.jobs.job import AttemptState, Job, JobState, Target
from simpletuner_fleet.core.jobs.submitting.submit_request import RetryRequest, SubmitRequest, Submitter
from simpletuner_fleet.core.people import tokens
from simpletuner_fleet.core.people.approvals import Voter
from simpletuner_fleet.core.policy import Limits
from simpletuner_fleet.core.publishing import Publish
from simpletuner_fleet.core.workers.worker import AdminState
from simpletuner_fleet.engine.fleet import Fleet
from simpletuner_fleet.orchestrator import limits, submit
from simpletuner_fleet.orchestrator.organising import approvals
from simpletuner_fleet.orchestrator.steering import trainer_requests
from simpletuner_fleet.orchestrator.submit import Submitted
from simpletuner_fleet.orchestrator.workers import administer
from simpletuner_fleet.sim.draw import LARGE, SMALL_STEPS, Size
from simpletuner_fleet.sim.machine import SimulatedMachine
from simpletuner_fleet.sim.network import UNREACHABLE, Answered, Link, LinkDown
from simpletuner_fleet.sim.server.orchestrator import Orchestrator
from simpletuner_fleet.sim.world import Violation, World

ADMIN = Actor("t_admin", "admin", "10.9.9.9")
APPROVER = Voter(ids=frozenset({ADMIN.id}), name=ADMIN.name, above=True)
SUBMIT_TRIES = 4


class Memory(Struct, frozen=True):
    """Holds what people believe of their jobs, as it is kept with a backup.

    After a restore all of it is as old as the database.
    """

    acked: dict[str, None]
    by_key: dict[str, str]
    cancelled: dict[str, int]


class People:
    def __init__(
        self,
        world: World,
        orchestrator: Orchestrator,
        link: Link,
        machines: list[SimulatedMachine],
        size: Size = LARGE,
    ) -> None:
        self.world = world
        self.orchestrator = orchestrator
        self.link = link
        self.machines = machines
        self.acked: dict[str, None] = {}
        """Jobs whose submission was answered: these must never be lost."""
        self.by_key: dict[str, str] = {}
        self.cancelled: dict[str, int] = {}
        """Jobs whose cancellation was answered, with their epoch then."""
        self.fan_outs = Random(f"fan-outs of {world.seed}")
        self.limits_were_set = False
        self.size = size
        self._keys = 0
        self._submissions = 0
        self.publishes: Callable[[], Publish | None] = lambda: None
        """Whether the next job's model is to be published, and where."""
        self.users = [
            Submitter(
                actor=Actor(f"t_user{n}", f"user{n}"),
                may_run_locally=n == 0,
                may_approve=n == 0,
                may_raise_priority=n < 2,
                may_read_jobs=True,
            )
            for n in range(3)
        ]

    def memory(self) -> Memory:
        return Memory(dict(self.acked), dict(self.by_key), dict(self.cancelled))

    def remember(self, memory: Memory) -> None:
        self.acked = dict(memory.acked)
        self.by_key, self.cancelled = dict(memory.by_key), dict(memory.cancelled)

    def _ask(self, step: Callable[[Fleet], Coroutine[Any, Any, Any]], answered: Answered) -> None:
        """Sends a request; an answer about a database that was replaced meanwhile counts as none."""
        work, restores = self.orchestrator.act(step), self.orchestrator.restores

        def heard(outcome: Any) -> None:
            answered(outcome if self.orchestrator.restores == restores else UNREACHABLE)

        self.link.call(lambda reply: self.orchestrator.receive(work, reply, self.link), heard)

    # Users

    def submit_something(self) -> None:
        chance = self.world.chance
        publish = self.publishes()
        request = SubmitRequest(
            publish=publish,
            config={
                "keeps": publish is not None,
                "run_s": self._run_s(),
                "exit": 1 if chance.random() < 0.12 else 0,
                "poison": chance.random() < 0.04,
            },
            target=chance.choice((Target.WORKER, Target.WORKER, Target.AUTO)),
            gpus=chance.choice(self.size.gpus),
            worker_labels=chance.choice(
                ({}, {}, {}, {}, {}, {}, {"team": "nlp"}, {"team": "v*"}, {"team": "no*"})
            ),
            priority=chance.choice((0, 0, 0, 10, -5)),
            max_retries=chance.choice((None, None, 0, 1)),
            retry_on_failure=chance.random() < 0.3,
            on_partition=chance.choice(("pause", "pause", "pause", "stop", "continue")),
            **self._time_limit(),
            depends_on=self._dependencies(),
            resume_from=self._stored_job() if chance.random() < 0.1 else None,
            not_before=self._start_time(),
        )
        user = chance.choice(self.users)
        if chance.random() < 0.6:
            self._keys += 1
            key = f"k{self._keys}"
            self._submit(user, replace(request, idempotency_key=key), SUBMIT_TRIES)
            if chance.random() < 0.1:
                other = replace(request, idempotency_key=key, priority=7)
                self.world.after(60.0, lambda: self._submit_other_body(user, other, key))
        else:
            self._submit(user, request, 1)

    def submit_fan_out(self) -> None:
        """Submits a job that more wait for than one step tells of its end, by a chance that disturbs no other.

        Some of them wait for a second one, too, that ends well and often soon after it.
        """
        chance = self.fan_outs
        user = self.users[chance.randrange(len(self.users))]
        first = {"run_s": chance.uniform(0.5, 15.0), "exit": int(chance.random() < 0.5)}
        needed: list[str] = []

        def submit_one(config: dict[str, Any]) -> None:
            request = SubmitRequest(config=config, gpus=1, max_retries=0)
            self._ask(
                lambda fleet: submit.submit(fleet, user, request, local_enabled=False),
                lambda outcome: answered(request, outcome),
            )

        def answered(request: SubmitRequest, outcome: Any) -> None:
            if not isinstance(outcome, Submitted):
                return
            self._acknowledged(request, outcome)
            needed.append(outcome.job.id)
            if len(needed) == 1:
                submit_one({"run_s": 0.5, "exit": 0})
            else:
                self._fan_out(needed)

        submit_one(first)

    def _fan_out(self, needed: list[str]) -> None:
        chance, few = self.fan_outs, SMALL_STEPS.told_at_once
        self.world.counts["act:fan out"] += 1
        for number in range(chance.randint(few + 1, 3 * few)):
            of_both = [*needed] if chance.random() < 0.5 else [*reversed(needed)]
            needs = of_both if chance.random() < 0.6 else needed[:1]
            self.world.after(0.1 * number, partial(self._submit_dependent, needs))
        if chance.random() < 0.2:
            self.world.after(chance.uniform(1.0, 20.0), lambda: self._cancel(needed[0]))

    def _submit_dependent(self, needs: list[str]) -> None:
        chance = self.fan_outs
        config = {"run_s": chance.uniform(0.5, 2.0), "exit": int(chance.random() < 0.1)}
        request = SubmitRequest(config=config, gpus=1, max_retries=0, depends_on=needs)
        self._submit(self.users[chance.randrange(len(self.users))], request, 1)

    def _start_time(self) -> str | None:
        """Returns a start time for every tenth job, without a draw, so that the rest of a seed stays as it was."""
        self._submissions += 1
        if self._submissions % 10:
            return None
        ahead_s = 15.0 * (self._submissions % 70)
        return datetime.fromtimestamp(self.world.now + ahead_s, UTC).isoformat()

    def _run_s(self) -> float:
        chance, (middling_s, *long_s) = self.world.chance, self.size.runs_s
        return chance.choice((chance.uniform(0.5, 5.0), chance.uniform(5.0, middling_s), *long_s))

    def _time_limit(self) -> dict[str, Any]:
        chance = self.world.chance
        if chance.random() > 0.2:
            return {}
        return {"time_limit_s": 40.0, "on_time_limit": chance.choice(("fail", "requeue"))}

    def _dependencies(self) -> list[str]:
        chance = self.world.chance
        if not self.acked or chance.random() > 0.15:
            return []
        return [chance.choice(list(self.acked))]

    def _submit(self, user: Submitter, request: SubmitRequest, tries: int) -> None:
        def answered(outcome: Any) -> None:
            if isinstance(outcome, Submitted):
                self._acknowledged(request, outcome)
            elif isinstance(outcome, LinkDown) and tries > 1:
                self.world.counts["submission repeated after a lost answer"] += 1
                self.world.after(2.0, lambda: self._submit(user, request, tries - 1))

        self._ask(lambda fleet: submit.submit(fleet, user, request, local_enabled=False), answered)

    def _acknowledged(self, request: SubmitRequest, outcome: Submitted) -> None:
        job_id = outcome.job.id
        self.acked[job_id] = None
        self.world.counts["job goes on from another's checkpoint"] += outcome.job.resume_from is not None
        if self.world.faulty and self.world.chance.random() < 0.08:
            self.world.after(self.world.chance.uniform(0.0, 0.3), lambda: self._cancel(job_id))
        key = request.idempotency_key
        if isinstance(key, str) and self.by_key.setdefault(key, job_id) != job_id:
            raise Violation("S5", f"key {key} gave {self.by_key[key]} and {job_id}")

    def _submit_other_body(self, user: Submitter, request: SubmitRequest, key: str) -> None:
        def answered(outcome: Any) -> None:
            known = self.by_key.get(key)
            if isinstance(outcome, Submitted):
                if known is not None and known != outcome.job.id:
                    raise Violation("S5", f"key {key} with another body gave another job")
                if known is not None:
                    raise Violation("S5", f"key {key} with another body was not refused")
            elif isinstance(outcome, IdempotencyMismatch):
                self.world.counts["idempotency mismatch refused"] += 1

        if key in self.by_key:
            self._ask(lambda fleet: submit.submit(fleet, user, request, local_enabled=False), answered)

    def _some_job(self) -> str | None:
        return self.world.chance.choice(list(self.acked)) if self.acked else None

    def _stored_job(self) -> str | None:
        """Returns a job that has a checkpoint to resume from, if there is one."""
        view = self.orchestrator.store.view
        stored = [job_id for job_id in self.acked if view.newest_checkpoint(job_id)]
        return self.world.chance.choice(stored) if stored else None

    def cancel_something(self) -> None:
        at_work = self.orchestrator.store.view.live_attempts()
        offered = [attempt for attempt in at_work if attempt.state is AttemptState.OFFERED]
        aimed = bool(at_work) and self.world.chance.random() < 0.6
        job_id = self.world.chance.choice(offered or at_work).job_id if aimed else self._some_job()
        if job_id is not None:
            self._cancel(job_id)

    def _cancel(self, job_id: str) -> None:
        self.world.counts["act:cancel"] += 1

        def answered(outcome: Any) -> None:
            if isinstance(outcome, Job):
                self.cancelled.setdefault(job_id, outcome.epoch)

        patient = self.world.chance.random() < 0.4
        self._ask(
            lambda fleet: submit.cancel(fleet, job_id, ADMIN, checkpoint_first=patient, grace_s=None),
            answered,
        )
        if patient and self.world.chance.random() < 0.3:
            self.world.counts["act:cancel again, in a hurry"] += 1
            self.world.after(
                5.0, lambda: self._ask(partial(submit.cancel, job_id=job_id, actor=ADMIN), _ignore)
            )

    def retry_something(self) -> None:
        job_id = self._some_job()
        if job_id is None:
            return
        self.world.counts["act:retry"] += 1

        def answered(outcome: Any) -> None:
            if isinstance(outcome, Job):
                self.acked[outcome.id] = None

        user = self.world.chance.choice(self.users)
        resume_from = None
        if self.world.chance.random() < 0.5:
            resume_from = self.world.chance.choice((job_id, self._stored_job()))
        self._ask(
            lambda fleet: submit.retry(fleet, job_id, user, RetryRequest(resume_from=resume_from)), answered
        )

    def change_priority(self) -> None:
        job_id = self._some_job()
        if job_id is not None:
            self.world.counts["act:priority"] += 1
            priority = self.world.chance.choice((-20, 0, 50))
            self._ask(lambda fleet: submit.set_priority(fleet, job_id, priority, ADMIN), _ignore)

    def ask_a_trainer(self) -> None:
        """Asks for a checkpoint or for a validation of something that runs; it trains on."""
        at_work = self.orchestrator.store.view.live_attempts()
        if not at_work:
            return
        job_id = self.world.chance.choice(at_work).job_id
        if self.world.chance.random() < 0.5:
            self.world.counts["act:checkpoint"] += 1
            self._ask(partial(trainer_requests.checkpoint_now, job_id=job_id, actor=ADMIN), _ignore)
        else:
            self.world.counts["act:validate"] += 1
            self._ask(partial(trainer_requests.validate_now, job_id=job_id, actor=ADMIN), _ignore)

    # Administrators

    def decide_approvals(self, *, always: bool = False) -> None:
        view = self.orchestrator.store.view
        for job_id in list(self.acked):
            job = view.job(job_id)
            if job is None or job.state is not JobState.BLOCKED or job.hold != "approval":
                continue
            if always or self.world.chance.random() < 0.7:
                self.world.counts["act:approve"] += 1
                self._ask(partial(approvals.approve, job_id=job_id, voter=APPROVER, actor=ADMIN), _ignore)
            else:
                self.world.counts["act:reject"] += 1
                self._ask(
                    partial(approvals.reject, job_id=job_id, voter=APPROVER, actor=ADMIN, why="no"), _ignore
                )

    def _some_machine(self) -> SimulatedMachine:
        return self.world.chance.choice(self.machines)

    def drain_something(self) -> None:
        worker_id = self._some_machine().worker_id
        self.world.counts["act:drain"] += 1
        timeout_s = self.world.chance.choice((None, None, 0.0, 10.0, 45.0))
        self._ask(
            lambda fleet: administer.drain(fleet, worker_id, "maintenance", ADMIN, timeout_s=timeout_s),
            _ignore,
        )
        if self.world.chance.random() < 0.7:
            self.world.after(self.world.chance.uniform(1.0, 120.0), lambda: self.resume(worker_id))

    def resume(self, worker_id: str) -> None:
        self.world.counts["act:resume"] += 1
        self._ask(lambda fleet: administer.resume(fleet, worker_id, ADMIN), _ignore)

    def resume_all(self) -> None:
        for worker in self.orchestrator.store.view.workers():
            if worker.admin is AdminState.DRAINING:
                self.resume(worker.id)

    def rotate_something(self) -> None:
        self.rotate(self._some_machine(), self.world.chance.uniform(1.0, self.size.longest_hand_over_s))

    def rotate(self, machine: SimulatedMachine, hand_over_s: float) -> None:
        """Rotates the token, which reaches the machine's token file after a while; a lost answer means again."""
        self.world.counts["act:rotate"] += 1

        def answered(outcome: Any) -> None:
            if isinstance(outcome, tuple):
                token = outcome[1]
                self.world.after(hand_over_s, lambda: self._hand_over(machine, token))
            elif not isinstance(outcome, FleetError) or outcome.code == "store_unavailable":
                self.world.after(3.0, lambda: self.rotate(machine, hand_over_s))

        self._ask(lambda fleet: administer.rotate_token(fleet, machine.worker_id, ADMIN), answered)

    def _hand_over(self, machine: SimulatedMachine, token: str) -> None:
        """Hands the new token over; of two rotations the later one counts, whichever arrives last."""
        worker = self.orchestrator.store.view.worker(machine.worker_id)
        if worker is not None and worker.token_hash == tokens.hashed(token):
            machine.token = token

    def replace_dead_tokens(self) -> None:
        """Rotates the tokens of machines that a rotation with a lost answer has locked out."""
        view = self.orchestrator.store.view
        for machine in self.machines:
            worker = view.worker(machine.worker_id)
            if worker is not None and worker.token_hash != tokens.hashed(machine.token):
                self.rotate(machine, 1.0)

    def delete_something(self) -> None:
        worker_id = self._some_machine().worker_id
        self.world.counts["act:delete"] += 1

        def answered(outcome: Any) -> None:
            if outcome is None:
                self.world.counts["worker deleted"] += 1

        self._ask(lambda fleet: administer.delete_worker(fleet, worker_id, ADMIN), answered)

    def relabel_something(self) -> None:
        worker_id = self._some_machine().worker_id
        labels = self.world.chance.choice(({}, {"team": "nlp"}, {"team": "vision"}))
        self.world.counts["act:labels"] += 1
        self._ask(lambda fleet: administer.set_labels(fleet, worker_id, labels, ADMIN), _ignore)

    def change_limits(self) -> None:
        chance = self.world.chance
        chosen = Limits(global_running=chance.choice((None, 1, 3)), user_running=chance.choice((None, 1)))
        self.world.counts["act:limits"] += 1
        self.limits_were_set = True
        self._ask(lambda fleet: limits.set_limits(fleet, chosen, ADMIN), _ignore)

    def lift_limits(self) -> None:
        self._ask(lambda fleet: limits.set_limits(fleet, Limits(), ADMIN), _ignore)


def _ignore(outcome: Any) -> None:
    """Ignores the answer, as a person does who looks at the list instead."""
