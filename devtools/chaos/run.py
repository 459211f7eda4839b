"""One run: the fleet starts, faults strike in rounds, all is healed, rest is awaited, and the verdict is found."""

import asyncio
import math
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct, field

from devtools.chaos.checks import job_history, judge
from devtools.chaos.deeper.kinds import impossible_here
from devtools.chaos.faults import KINDS, draw_faults
from devtools.chaos.fleet import ChaosFleet
from devtools.chaos.injector import Fault, FaultInjector
from devtools.chaos.workload import Workload
from simpletuner_fleet.agent.guard.shim_report import REPORT_FOR_S
from simpletuner_fleet.sim.checks.checkers import Problem

JOB_ID = re.compile(r"\bj_[A-Za-z0-9_-]+")
PROCESSES_GONE_WITHIN_S = 10.0
GUARDIANS_GONE_WITHIN_S = REPORT_FOR_S + PROCESSES_GONE_WITHIN_S
"""One whose agent died reports by itself what became of its trainer, and tries that for a while."""
AT_ONCE = 3
"""So many faults are on their way at a time: while one waits for what it needs to itself, others strike."""


class Verdict(Struct):
    seed: int
    folder: Path
    impossible: dict[str, str] = field(default_factory=dict)
    """Kinds that this machine cannot do, and why."""
    problems: list[Problem] = field(default_factory=list)
    histories: list[str] = field(default_factory=list)
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    without_victim: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    cancels: int = 0
    drains: int = 0
    rotations: int = 0
    took_s: float = 0.0
    broken_off: bool = False
    """Rest was never reached, so what is stored is incomplete."""

    def text(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        ends = ", ".join(f"{count} {how}" for how, count in sorted(self.endings.items()))
        lines = [
            (
                f"seed {self.seed}: {self.rounds} rounds, {self.faults.total()} faults in {self.took_s:.0f} s "
                f"({self.without_victim.total()} found no victim)"
            ),
            f"  faults: {kinds}",
            (
                f"  jobs: {self.endings.total()} ({ends}) in {self.attempts} started attempts; "
                f"{self.cancels} cancels, {self.drains} drains, {self.rotations} token rotations"
            ),
            f"  violations: {len(self.problems)}",
        ]
        for why in sorted(set(self.impossible.values())):
            kinds = ", ".join(sorted(kind for kind, reason in self.impossible.items() if reason == why))
            lines.append(f"  NOT DONE, since {why}: {kinds}")
        lines += [f"  {promise}: {how}" for promise, how in self.problems]
        if self.problems:
            lines += [*self.histories, f"  everything is kept in {self.folder}"]
        return "\n".join(lines)


def run_chaos(
    seed: int, rounds: int, verbose: bool = False, only: Sequence[str] = (), until: float = math.inf
) -> Verdict:
    """`only` are the kinds to draw from, if any are named; at `until`, on the monotonic clock, no further fault is begun."""
    folder = Path(tempfile.mkdtemp(prefix="simpletuner-chaos-"))
    verdict = Verdict(seed=seed, folder=folder)
    began = time.monotonic()
    fleet = ChaosFleet(folder)
    verdict.impossible = {
        kind: why for kind, why in impossible_here(fleet).items() if not only or kind in only
    }
    without = {*verdict.impossible, *(kind for kind in KINDS if only and kind not in only)}
    faults = draw_faults(seed, rounds, without)
    injector, workload = asyncio.run(_run_fleet(fleet, verdict, faults, verbose, until))
    if not verdict.broken_off:
        verdict.problems += judge(fleet, workload, injector)
    verdict.took_s = time.monotonic() - began
    job_ids = dict.fromkeys(job for _, how in verdict.problems for job in JOB_ID.findall(how))
    verdict.histories = [job_history(fleet, job_id) for job_id in list(job_ids)[:3]]
    if not verdict.problems:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


async def _run_fleet(
    fleet: ChaosFleet, verdict: Verdict, faults: list[Fault], verbose: bool, until: float
) -> tuple[FaultInjector, Workload]:
    workload, injector = Workload(fleet, verdict.seed), FaultInjector(fleet, KINDS)
    try:
        await fleet.start()
        fleet.api.excused = lambda: injector.breaks_the_server
        workload.start()
        remaining = iter(faults)
        async with asyncio.TaskGroup() as strikers:
            for _ in range(AT_ONCE):
                strikers.create_task(
                    _strike_in_turn(fleet, workload, verdict, injector, remaining, verbose, until)
                )
        await injector.wait_until_all_undone()
        await workload.stop()
        await _wait_for_rest(fleet, workload)
        verdict.problems += await _leftover_processes(fleet)
        verdict.problems += [("L2", complaint) for complaint in await fleet.stop()]
    except* AssertionError as group:
        verdict.broken_off = True
        opened = [job.job_id for job in workload.open_jobs()][:3]
        verdict.problems += [("L1", f"{error}; open: {opened}") for error in leaves(group)]
    finally:
        workload.cancel()
        injector.cancel()
        await fleet.clean_up()
    verdict.faults, verdict.without_victim = injector.counts, injector.without_victim
    verdict.endings = Counter(workload.ended.values())
    verdict.attempts = _attempts_started(fleet)
    verdict.cancels, verdict.drains, verdict.rotations = workload.cancels, workload.drains, workload.rotations
    return injector, workload


async def _strike_in_turn(
    fleet: ChaosFleet,
    workload: Workload,
    verdict: Verdict,
    injector: FaultInjector,
    remaining: Iterator[Fault],
    verbose: bool,
    until: float,
) -> None:
    for fault in remaining:
        if time.monotonic() >= until:
            return
        await _round(fleet, verdict, injector, fault, verbose)
        workload.raise_what_failed()


def leaves(group: BaseExceptionGroup[AssertionError]) -> list[BaseException]:
    errors: list[BaseException] = []
    for one in group.exceptions:
        errors += leaves(one) if isinstance(one, BaseExceptionGroup) else [one]
    return errors


async def _round(
    fleet: ChaosFleet, verdict: Verdict, injector: FaultInjector, fault: Fault, verbose: bool
) -> None:
    await asyncio.sleep(fault.after_s)
    verdict.rounds += 1
    if verbose:
        print(f"  round {verdict.rounds}: {fault.text()}", flush=True)
    await injector.begin(fault)
    for worker in fleet.workers:
        if not worker.down_on_purpose and not worker.agent.alive:
            raise AssertionError(f"{worker.name} ended by itself with code {worker.agent.exit_code}")


async def _wait_for_rest(fleet: ChaosFleet, workload: Workload) -> None:
    await workload.wait_until_all_ended()
    await fleet.wait_until(fleet.all_idle, "every worker is idle")


async def _leftover_processes(fleet: ChaosFleet) -> list[Problem]:
    """Finds processes of attempts that have ended: none may survive its end."""

    async def no_trainer() -> bool:
        return not any(worker.tree() for worker in fleet.workers)

    async def no_guardian() -> bool:
        return not any(worker.shims() for worker in fleet.workers)

    try:
        await fleet.wait_until(no_trainer, "every process of a trainer is gone", PROCESSES_GONE_WITHIN_S)
        await fleet.wait_until(no_guardian, "every guardian is gone", GUARDIANS_GONE_WITHIN_S)
    except AssertionError:
        left = {worker.name: (worker.tree(), worker.shims()) for worker in fleet.workers}
        return [("S4", f"processes outlive their attempts (trees, guardians): {left}")]
    return []


def _attempts_started(fleet: ChaosFleet) -> int:
    text = fleet.journal.read_bytes() if fleet.journal.exists() else b""
    return text.count(b'"event": "start"')
