"""Watches a simulated store: after every commit it checks the rows that changed, and their audit entries."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from msgspec.structs import replace

from simpletuner_fleet.core.audit import AuditEntry, Witness, entry_hash
from simpletuner_fleet.core.events import EventType
from simpletuner_fleet.core.jobs.fencing import Turn
from simpletuner_fleet.core.jobs.job import (
    ATTEMPT_TRANSITIONS,
    JOB_TRANSITIONS,
    Attempt,
    AttemptState,
    Job,
    JobState,
    Outcome,
    Results,
)
from simpletuner_fleet.core.policy import Policy
from simpletuner_fleet.core.workers.worker import Worker, WorkerStatus
from simpletuner_fleet.ports import View
from simpletuner_fleet.sim.checks.checkers import (
    Problem,
    attempt_problems,
    dependency_problems,
    gpu_problems,
    job_problems,
    offer_problems,
    that_train,
    worker_problems,
)
from simpletuner_fleet.sim.checks.truth import Truth
from simpletuner_fleet.sim.server.store import Changes
from simpletuner_fleet.sim.world import Violation

EDGES = frozenset((before, after) for (before, _), after in JOB_TRANSITIONS.items())
ATTEMPT_EDGES = frozenset((before, after) for (before, _), after in ATTEMPT_TRANSITIONS.items())
HIGHEST_EPOCH = 2**41
EVENTS_OF_EDGE: dict[tuple[JobState, JobState], frozenset[EventType]] = {
    (JobState.BLOCKED, JobState.QUEUED): frozenset({EventType.JOB_UNBLOCKED, EventType.JOB_APPROVED}),
    (JobState.BLOCKED, JobState.CANCELLED): frozenset({EventType.JOB_CANCELLED, EventType.JOB_REJECTED}),
    (JobState.BLOCKED, JobState.FAILED): frozenset({EventType.JOB_FAILED}),
    (JobState.QUEUED, JobState.DISPATCHED): frozenset({EventType.JOB_DISPATCHED}),
    (JobState.QUEUED, JobState.RUNNING): frozenset({EventType.JOB_READOPTED}),
    (JobState.QUEUED, JobState.CANCELLED): frozenset({EventType.JOB_CANCELLED}),
    (JobState.DISPATCHED, JobState.RUNNING): frozenset({EventType.JOB_ACCEPTED}),
    (JobState.DISPATCHED, JobState.QUEUED): frozenset({EventType.JOB_REQUEUED}),
    (JobState.DISPATCHED, JobState.CANCELLED): frozenset({EventType.JOB_CANCELLED}),
    (JobState.DISPATCHED, JobState.CANCELLING): frozenset({EventType.JOB_CANCEL_REQUESTED}),
    (JobState.RUNNING, JobState.COMPLETED): frozenset({EventType.JOB_COMPLETED}),
    (JobState.RUNNING, JobState.QUEUED): frozenset({EventType.JOB_REQUEUED}),
    (JobState.RUNNING, JobState.FAILED): frozenset({EventType.JOB_FAILED}),
    (JobState.RUNNING, JobState.CANCELLING): frozenset({EventType.JOB_CANCEL_REQUESTED}),
    (JobState.CANCELLING, JobState.COMPLETED): frozenset({EventType.JOB_COMPLETED}),
    (JobState.CANCELLING, JobState.CANCELLED): frozenset({EventType.JOB_CANCELLED}),
}


class CommitWatch:
    """Checks each commit of the simulator and raises at the first broken invariant."""

    def __init__(self, view: View, policy: Policy) -> None:
        self.view = view
        self.policy = policy
        self.edges: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.newest_epoch = 0
        """Of all that were ever given, also where a restore has forgotten them."""
        self.highest_epoch = HIGHEST_EPOCH
        self.submitted: list[str] = []
        """Every job, in the order in which the log names them."""
        self.taken_away: list[str] = []
        """Hashes of workers' tokens, by commits that nobody was told of yet."""
        self._head_hash = "0" * 64
        self._head_seq = 0
        self._status: dict[str, WorkerStatus] = {}

    def saw(self, changes: Changes, *, sender: str | None) -> None:
        recorded: dict[str, set[str]] = {}
        for entry in changes.audit:
            recorded.setdefault(entry.target_id, set()).add(entry.event_type)
            self._chain(entry)
        busy_workers = set(changes.workers)
        for attempt_id, attempts in changes.attempts.items():
            self._attempt(attempt_id, attempts, changes)
            last = attempts[-1]
            if last is not None:
                busy_workers.add(last.worker_id)
        if changes.attempts:
            self._raise(gpu_problems(that_train(self.view, self.view.live_attempts())))
        for job_id, jobs in changes.jobs.items():
            self._job(job_id, jobs, recorded.get(job_id, set()))
        for worker_id, workers in changes.workers.items():
            self._worker(worker_id, workers, recorded.get(worker_id, set()))
        for worker_id in sorted(busy_workers):
            self._check_recorded_status(worker_id)
        if sender is not None:
            self._only_its_own(changes, sender)

    def _chain(self, entry: AuditEntry) -> None:
        if entry.seq != self._head_seq + 1 or entry_hash(entry, self._head_hash) != entry.hash:
            raise Violation("A2", f"audit entry {entry.seq} does not follow {self._head_seq}")
        self._head_seq, self._head_hash = entry.seq, entry.hash
        if entry.event_type == EventType.JOB_SUBMITTED:
            self.submitted.append(entry.target_id)
        if entry.event_type == EventType.WORKER_STATUS_CHANGED:
            before = self._status.get(entry.target_id)
            if before is not None and entry.details["from"] != before:
                raise Violation("A1", f"{entry.target_id} was {before}, not {entry.details['from']}")
            self._status[entry.target_id] = WorkerStatus(entry.details["to"])

    def restored(self, entries: Sequence[AuditEntry], highest_epoch: int) -> None:
        """Restarts the checks between commits from the older database that was restored."""
        last = entries[-1] if entries else None
        self._head_seq, self._head_hash = (last.seq, last.hash) if last else (0, "0" * 64)
        self.submitted = [one.target_id for one in entries if one.event_type == EventType.JOB_SUBMITTED]
        self._status.clear()
        for entry in entries:
            if entry.event_type == EventType.WORKER_STATUS_CHANGED:
                self._status[entry.target_id] = WorkerStatus(entry.details["to"])
        self.highest_epoch = highest_epoch

    def log_problems(self, entries: Sequence[AuditEntry], witnesses: Iterable[Witness]) -> list[Problem]:
        """Checks that the log is as long and ends as when it was written; each entry was checked then."""
        last = entries[-1] if entries else None
        if len(entries) != self._head_seq or (last is not None and last.hash != self._head_hash):
            return [("A2", f"the log has {len(entries)} entries, {self._head_seq} were written")]
        return [
            ("A2", f"{one.who} remembers another entry {one.seq}")
            for one in witnesses
            if not 0 < one.seq <= len(entries) or entries[one.seq - 1].hash != one.hash
        ]

    def _attempt(self, attempt_id: str, chain: list[Attempt | None], changes: Changes) -> None:
        first, last = chain[0], chain[-1]
        if last is None:
            raise Violation("S1", f"attempt {attempt_id} was deleted")
        self._attempt_edges(attempt_id, [one.state for one in chain if one is not None])
        self._raise(attempt_problems(last))
        job = self.view.job(last.job_id)
        if job is None:
            raise Violation("S1", f"attempt {attempt_id} has no job")
        if last.outcome is not None and (first is None or first.outcome is not last.outcome):
            self.outcomes[last.outcome] += 1
        if first is None:
            if last.epoch <= self.newest_epoch:
                raise Violation("S12", f"epoch {last.epoch} was given after {self.newest_epoch}")
            if last.epoch > self.highest_epoch:
                raise Violation("S16", f"somebody's lie has used up the epochs: {last.epoch}")
            self.newest_epoch = last.epoch
            if last.live:
                live = that_train(self.view, self.view.live_attempts_of_worker(last.worker_id))
                self._raise(offer_problems(last, job, self.view.worker(last.worker_id), live))
            return
        job_before = changes.jobs.get(last.job_id, [job])[0]
        if job_before is None or job_before.epoch != last.epoch:
            raise Violation("S2", f"{attempt_id} of epoch {last.epoch} was changed, the job was elsewhere")
        if not first.live and replace(first, checkpoint_step=last.checkpoint_step) == last:
            return  # its last upload arrived after its report
        if not first.live and first.outcome is not Outcome.LOST:
            raise Violation("S6", f"{attempt_id} had ended {first.outcome} and was changed")
        if not first.live and job_before.state is not JobState.QUEUED:
            raise Violation("S2", f"{attempt_id} was taken up again while the job was {job_before.state}")

    def _attempt_edges(self, attempt_id: str, states: list[AttemptState]) -> None:
        for before, after in pairwise(states):
            if before is not after and (before, after) not in ATTEMPT_EDGES:
                raise Violation("S6", f"attempt {attempt_id} went from {before} to {after}")

    def _job(self, job_id: str, chain: list[Job | None], recorded: set[str]) -> None:
        last = chain[-1]
        if last is None:
            raise Violation("S1", f"{job_id} was deleted")
        if chain[0] is None and EventType.JOB_SUBMITTED not in recorded:
            raise Violation("A1", f"{job_id} appeared without an entry")
        for before, after in pairwise(chain):
            if before is None or after is None:
                continue
            if before.terminal and not _results_arrived(before, after):
                raise Violation("S6", f"{job_id} was {before.state} and was changed to {after.state}")
            if before.state is after.state:
                continue
            edge = (before.state, after.state)
            self.edges[f"{before.state} -> {after.state}"] += 1
            if edge not in EDGES:
                raise Violation("S13", f"{job_id} went from {before.state} to {after.state}")
            if not recorded & EVENTS_OF_EDGE[edge]:
                raise Violation(
                    "A1", f"{job_id} went from {before.state} to {after.state}; recorded were {recorded}"
                )
            if before.state is JobState.CANCELLING and after.state not in (
                JobState.CANCELLED,
                JobState.COMPLETED,
            ):
                raise Violation("S7", f"{job_id} was being cancelled and became {after.state}")
        self._raise(job_problems(last, self.view.attempts_of_job(job_id)))
        self._raise(dependency_problems(self.view, last))

    def _worker(self, worker_id: str, chain: list[Worker | None], recorded: set[str]) -> None:
        first, last = chain[0], chain[-1]
        expected: list[tuple[bool, set[EventType]]] = [(first is None, {EventType.WORKER_CREATED})]
        if last is None:
            expected.append((True, {EventType.WORKER_DELETED, EventType.WORKER_CLEANED_UP}))
            self._status.pop(worker_id, None)
            if self.view.live_attempts_of_worker(worker_id):
                raise Violation("S10", f"{worker_id} was removed while it held attempts")
            if first is not None and EventType.WORKER_DELETED in recorded:
                self.taken_away.append(first.token_hash)
        elif first is not None:
            if first.token_hash != last.token_hash:
                self.taken_away.append(first.token_hash)
            expected += [
                (first.admin is not last.admin, {EventType.WORKER_DRAINED, EventType.WORKER_RESUMED}),
                (first.token_hash != last.token_hash, {EventType.WORKER_TOKEN_ROTATED}),
                (first.labels != last.labels, {EventType.WORKER_LABELS_SET}),
                (first.price_micros != last.price_micros, {EventType.WORKER_PRICE_SET}),
                (first.incarnation != last.incarnation, {EventType.WORKER_REGISTERED}),
                (last.interruption is not None and not first.interruption, {EventType.WORKER_INTERRUPTED}),
            ]
        for happened, by in expected:
            if happened and not recorded & by:
                raise Violation("A1", f"{worker_id} changed; expected one of {by}, recorded were {recorded}")

    def _check_recorded_status(self, worker_id: str) -> None:
        worker = self.view.worker(worker_id)
        if worker is None:
            return
        live = self.view.live_attempts_of_worker(worker_id)
        self._raise(worker_problems(worker, live, that_train(self.view, live)))
        status = worker.status(bool(live))
        if self._status.setdefault(worker_id, status) is not status:
            raise Violation("A1", f"{worker_id} is {status}; the log says {self._status[worker_id]}")

    def _only_its_own(self, changes: Changes, sender: str) -> None:
        """Checks that one worker's message changes nothing of another's; what it frees may be offered to anybody."""
        for worker_id in changes.workers:
            if worker_id != sender:
                raise Violation("S16", f"a message of {sender} changed {worker_id}")
        for attempts in changes.attempts.values():
            if attempts[0] is not None and attempts[0].worker_id != sender:
                raise Violation("S16", f"a message of {sender} changed an attempt of {attempts[0].worker_id}")
        for jobs in changes.jobs.values():
            if (
                jobs[0] is not None
                and jobs[0].worker_id not in (None, sender)
                and not _only_survival_noted(jobs)
            ):
                raise Violation("S16", f"a message of {sender} changed {jobs[0].id} of {jobs[0].worker_id}")

    @staticmethod
    def _raise(problems: list[Problem]) -> None:
        if problems:
            raise Violation(*problems[0])


def _only_survival_noted(jobs: list[Job | None]) -> bool:
    """Tells whether only the survival of a worker thought dead was noted on a job that is another's by now."""
    first, last = jobs[0], jobs[-1]
    if first is None or last is None:
        return False
    return replace(first, version=last.version, lost_workers=last.lost_workers) == last


def early_losses(
    entries: Iterable[AuditEntry],
    now: float,
    last_read: Mapping[str, float],
    last_named: Mapping[tuple[str, str, int], float],
    started_at: float,
    policy: Policy,
) -> list[Problem]:
    """Checks that nobody is given up before a whole timeout of silence, less two rounds of the coarse clock."""
    lost = [entry for entry in entries if entry.event_type == EventType.JOB_LOST]
    if not lost:
        return []
    least_s = policy.heartbeat_timeout_s - 2 * policy.sweep_interval_s - 1e-6
    problems: list[Problem] = []
    for entry in lost:
        why = str(entry.details.get("why", ""))
        turn = (entry.target_id, int(entry.details["epoch"]))
        worker_id = str(entry.details["worker_id"])
        if why.startswith("no heartbeat"):
            heard_at = last_read.get(worker_id, 0.0)
        elif why.startswith("its worker has not named"):
            heard_at = last_named.get((worker_id, *turn), 0.0)
        else:
            continue
        silent_s = now - max(heard_at, started_at)
        if silent_s < least_s:
            problems.append(("L4", f"{turn} was given up after {silent_s:.1f} s: {why}"))
    return problems


def _results_arrived(before: Job, after: Job) -> bool:
    """Tells whether missing results were stored after all: nothing else may still happen to an ended job."""
    if before.results is not Results.MISSING or after.results is not Results.STORED:
        return False
    same = replace(after, results=before.results, error=before.error, reason=before.reason)
    return same == replace(before, version=after.version)


def untrue_validations(changes: Changes, truth: Truth, hostile: set[str]) -> list[Problem]:
    """A request for a validation is noted as passed on only where a trainer has heard it."""
    problems: list[Problem] = []
    for before, *_, after in (chain for chain in changes.attempts.values() if len(chain) > 1):
        if after is None or after.validating is None or after.worker_id in hostile:
            continue
        passed_on = after.validating.told_at is not None
        is_new = before is None or before.validating != after.validating
        turn = Turn(after.job_id, after.epoch)
        if passed_on and is_new and not truth.was_asked_to_validate(turn, after.validating.asked_at):
            problems.append(("V1", f"{turn} is said to have been asked to validate, and was not"))
    return problems
