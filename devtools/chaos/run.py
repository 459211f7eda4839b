"""One run: the fleet starts, faults strike in rounds, all is healed, rest is awaited, and the verdict is found."""

import asyncio
import re
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path

from msgspec import Struct, field

from devtools.chaos.checks import judge, story_of
from devtools.chaos.faults import Fault, Mischief, draw_faults
from devtools.chaos.fleet import Fleet, wait_until
from devtools.chaos.workload import Workload
from simpletuner_fleet.sim.checkers import Problem

JOB_ID = re.compile(r"\bj_[A-Za-z0-9_-]+")
PROCESSES_GONE_WITHIN_S = 10.0


class Verdict(Struct):
    seed: int
    folder: Path
    problems: list[Problem] = field(default_factory=list)
    stories: list[str] = field(default_factory=list)
    rounds: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    attempts: int = 0
    cancels: int = 0
    drains: int = 0
    rotations: int = 0
    took_s: float = 0.0
    broken_off: bool = False
    """Rest was never reached, so what is stored is half a story."""

    def told(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        ends = ", ".join(f"{count} {how}" for how, count in sorted(self.endings.items()))
        lines = [
            (
                f"seed {self.seed}: {self.rounds} rounds, {self.faults.total()} faults in {self.took_s:.0f} s "
                f"({self.missed.total()} found no victim)"
            ),
            f"  faults: {kinds}",
            (
                f"  jobs: {self.endings.total()} ({ends}) in {self.attempts} started attempts; "
                f"{self.cancels} cancels, {self.drains} drains, {self.rotations} token rotations"
            ),
            f"  violations: {len(self.problems)}",
        ]
        lines += [f"  {promise}: {how}" for promise, how in self.problems]
        if self.problems:
            lines += [*self.stories, f"  everything is kept in {self.folder}"]
        return "\n".join(lines)


def run_chaos(seed: int, rounds: int, say: bool = False) -> Verdict:
    folder = Path(tempfile.mkdtemp(prefix="simpletuner-chaos-"))
    verdict = Verdict(seed=seed, folder=folder)
    began = time.monotonic()
    fleet = Fleet(folder)
    mischief, workload = asyncio.run(_live(fleet, verdict, draw_faults(seed, rounds), say))
    if not verdict.broken_off:
        verdict.problems += judge(fleet, workload, mischief)
    verdict.took_s = time.monotonic() - began
    named = dict.fromkeys(job for _, how in verdict.problems for job in JOB_ID.findall(how))
    verdict.stories = [story_of(fleet, job_id) for job_id in list(named)[:3]]
    if not verdict.problems:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


async def _live(fleet: Fleet, verdict: Verdict, faults: list[Fault], say: bool) -> tuple[Mischief, Workload]:
    workload, mischief = Workload(fleet, verdict.seed), Mischief(fleet)
    try:
        await fleet.start()
        workload.start()
        for fault in faults:
            await _round(fleet, verdict, mischief, fault, say)
        await mischief.heal()
        await workload.stop()
        await _rest(fleet, workload)
        verdict.problems += await _left_overs(fleet)
        verdict.problems += [("L2", told) for told in await fleet.stop()]
    except AssertionError as error:
        verdict.broken_off = True
        verdict.problems.append(("L1", f"{error}; open: {[job.job_id for job in workload.open_jobs()][:3]}"))
    finally:
        workload.abandon()
        mischief.abandon()
        await fleet.clean_up()
    verdict.faults, verdict.missed = mischief.done, mischief.missed
    verdict.endings = Counter(workload.ended.values())
    verdict.attempts = _attempts_started(fleet)
    verdict.cancels, verdict.drains, verdict.rotations = workload.cancels, workload.drains, workload.rotations
    return mischief, workload


async def _round(fleet: Fleet, verdict: Verdict, mischief: Mischief, fault: Fault, say: bool) -> None:
    await asyncio.sleep(fault.after_s)
    verdict.rounds += 1
    if say:
        print(f"  round {verdict.rounds}: {fault.told()}", flush=True)
    await mischief.begin(fault)
    for worker in fleet.workers:
        if not worker.down_on_purpose and not worker.agent.alive:
            raise AssertionError(f"{worker.name} ended by itself with code {worker.agent.exit_code}")


async def _rest(fleet: Fleet, workload: Workload) -> None:
    await workload.rest()
    await wait_until(fleet.all_idle, "every worker is idle")


async def _left_overs(fleet: Fleet) -> list[Problem]:
    """No process of any attempt survives its end."""

    async def gone() -> bool:
        return not any(worker.tree() or worker.shims() for worker in fleet.workers)

    try:
        await wait_until(gone, "every process is gone", PROCESSES_GONE_WITHIN_S)
    except AssertionError:
        left = {worker.name: (worker.tree(), worker.shims()) for worker in fleet.workers}
        return [("S4", f"processes outlive their attempts (trees, guardians): {left}")]
    return []


def _attempts_started(fleet: Fleet) -> int:
    text = fleet.journal.read_bytes() if fleet.journal.exists() else b""
    return text.count(b'"event": "start"')
