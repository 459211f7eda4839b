"""Adds up many seeds: faults by kind, state transitions taken, jobs by outcome."""

from collections import Counter

from simpletuner_fleet.core.jobs.job import Outcome
from simpletuner_fleet.sim.checks.commit_watch import EDGES
from simpletuner_fleet.sim.run import Result

FAULTS = (
    "agent killed",
    "agent paused",
    "agent told to leave",
    "answer lost",
    "backup restored",
    "bad message",
    "disk full",
    "foreign answer",
    "forwarder dead",
    "machine can start nothing",
    "machine lost power",
    "middle box answers",
    "network cut both ways",
    "network cut orchestrator to worker",
    "network cut to everybody",
    "network cut worker to orchestrator",
    "one of several orchestrators killed",
    "one of several orchestrators stalled",
    "orchestrator cut from its database",
    "orchestrator frozen before an answer",
    "orchestrator killed",
    "orchestrator killed after commit",
    "orchestrator killed as the network returns",
    "orchestrator killed before commit",
    "orchestrator stalled",
    "poison job",
    "publication broken off",
    "publication refused",
    "publication refused for good",
    "publication's answer lost",
    "request lost",
    "request repeated",
    "message of a stream repeated",
    "slow message",
    "storage fails",
    "stream dropped",
    "stream half open",
    "token used twice",
    "wall clock jumps",
)
MUST_HAPPEN = (
    "act:approve",
    "act:cancel",
    "act:checkpoint",
    "act:delete",
    "act:drain",
    "act:fan out",
    "act:labels",
    "act:limits",
    "act:priority",
    "act:reject",
    "act:resume",
    "act:retry",
    "act:rotate",
    "act:validate",
    "agent gives up a silent stream",
    "agent superseded",
    "answer held back in doubt",
    "attempt adopted by a new agent",
    "backup made",
    "checkpoint saved on request",
    "finishing told",
    "frozen between commit and answer",
    "hostile worker is offered a job",
    "idempotency mismatch refused",
    "job goes on from another's checkpoint",
    "older agent exits on 401",
    "orchestrator died while it published",
    "publication asked for again",
    "publication failed",
    "publication published",
    "publication tried again",
    "older agent reports two finals",
    "request passed on",
    "results missing",
    "shim reports by itself",
    "start came too late",
    "submission repeated after a lost answer",
    "time limit reached",
    "told of an end by several steps",
    "trainer could not be asked",
    "trainer fenced",
    "trainer paused",
    "trainer resumed",
    "two workers share a machine's GPUs",
    "watchdog restart",
    "worker deleted",
)


class Tally:
    def __init__(self) -> None:
        self.seeds = 0
        self.events = 0
        self.virtual_s = 0.0
        self.counts: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        self.edges: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.failures: list[Result] = []

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.events += result.events
        self.virtual_s += result.virtual_s
        self.counts += result.counts
        self.jobs += result.jobs
        self.edges += result.edges
        self.outcomes += result.outcomes
        if result.violation:
            self.failures.append(result)

    @property
    def faults(self) -> int:
        return sum(self.counts[f"fault:{kind}"] for kind in FAULTS)

    def never_happened(self) -> list[str]:
        """Lists whatever the run was to show and did not; only if the list is empty is the rest meaningful."""
        expected = [(f"fault: {kind}", self.counts[f"fault:{kind}"]) for kind in FAULTS]
        expected += [(name, self.counts[name]) for name in MUST_HAPPEN]
        expected += [(f"{a} -> {b}", self.edges[f"{a} -> {b}"]) for a, b in sorted(EDGES)]
        expected += [(f"outcome {outcome}", self.outcomes[outcome]) for outcome in Outcome]
        return [name for name, count in expected if not count]

    def report(self) -> list[str]:
        days = self.virtual_s / 86_400
        lines = [
            f"{self.seeds} seeds, {self.events} events, {days:.1f} days of virtual time, {self.faults} faults"
        ]
        lines += _table("faults", {kind: self.counts[f"fault:{kind}"] for kind in FAULTS})
        lines += _table("jobs at rest", dict(sorted(self.jobs.items())))
        lines += _table("attempts by outcome", dict(sorted(self.outcomes.items())))
        lines += _table("edges", dict(sorted(self.edges.items())))
        others = {name: count for name, count in sorted(self.counts.items()) if not name.startswith("fault:")}
        return lines + _table("also", others)


def _table(title: str, rows: dict[str, int]) -> list[str]:
    return [f"{title}:", *(f"  {count:9d}  {name}" for name, count in rows.items())]
