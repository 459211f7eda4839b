"""`./dev soak --jobs N`: tiny jobs through real agents and a real server, for as long as it takes.

Every job runs once. Memory, open files and the workers' disks stay as they are, however many jobs have passed; the
server's folder grows by the rows of a job and no more.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
from msgspec import Struct

from devtools.chaos.processes import Program, end_everything_under
from devtools.ports import free_port

FEWEST_WORKERS, JOBS_AT_ONCE = 2, 4
SAMPLES = 40
AHEAD = 30
"""Jobs for each worker that run or wait in line."""
KEPT = 10
PATIENCE_S = 120.0
MIB = 1024 * 1024
LIMITS = {"memory": 16 * MIB, "files": 12, "disk": 4 * MIB}
"""How much more a program may have in the last quarter than in the second one."""
CACHES = 3 * 32 * MIB
"""What SQLite may remember of a server's database while that grows: so much for each of its connections. A database that
was larger already has filled them, and then nothing may grow."""


class Sample(Struct, frozen=True):
    jobs: int
    memory: dict[str, int]
    files: dict[str, int]
    disk: dict[str, int]


class ProcessorTime(Struct, frozen=True):
    """Seconds that each part of the fleet has computed."""

    server: float
    agents: float
    started: float
    """Whatever the agents have started: guardians, what forks them, trainers."""

    def per_job(self, before: "ProcessorTime", jobs: int) -> str:
        parts = {
            "server": self.server - before.server,
            "agents": self.agents - before.agents,
            "guardians and trainers": self.started - before.started,
        }
        each = ", ".join(f"{name} {seconds / jobs * 1000:.1f}" for name, seconds in parts.items())
        return f"{sum(parts.values()) / jobs * 1000:.1f} ms of CPU for each ({each})"


class SoakFleet:
    """A server and a few workers, each with a folder of its own."""

    def __init__(self, folder: Path, workers: int) -> None:
        self.folder = folder
        self.workers = workers
        self.journal = folder / "journal"
        self._port = free_port()
        self._environment = {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "HOME": str(folder),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "SIMPLETUNER_HOME": str(folder / "server"),
            "SIMPLETUNER_ISOLATION": "none",
            "SIMPLETUNER_MIN_FREE_GB": "0",
            "SIMPLETUNER_KEEP_FREE_GB": "0",
            "SIMPLETUNER_GPU_INVENTORY": "[]",
        }
        words = ("server", "--port", str(self._port), "--no-local")
        self.programs = {"server": Program("server", words, self._environment, folder / "server.log")}
        self.http = httpx2.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=30.0, trust_env=False)

    def start(self) -> None:
        self.programs["server"].start()
        wait_for(self._ready, "the server is ready")
        token = (self.folder / "server" / "admin_token").read_text().strip()
        self.http.headers["authorization"] = f"Bearer {token}"
        for number in range(self.workers):
            self._start_worker(f"worker-{number}")
        wait_for(lambda: self._idle() == self.workers, "every worker is there")

    def _start_worker(self, name: str) -> None:
        created = self.http.post("/api/admin/workers", json={"name": name}).raise_for_status().json()
        words: tuple[str, ...] = (
            "worker",
            "--orchestrator-url",
            str(self.http.base_url),
            "--name",
            name,
            "--persistent",
        )
        words += (
            "--work-dir",
            str(self.folder / name),
            "--max-jobs",
            str(JOBS_AT_ONCE),
            "--keep-attempts",
            str(KEPT),
        )
        environment = {**self._environment, "SIMPLETUNER_WORKER_TOKEN": created["token"]}
        self.programs[name] = Program(name, words, environment, self.folder / f"{name}.log")
        self.programs[name].start()

    def _ready(self) -> bool:
        try:
            return self.http.get("/health/ready").status_code == 200
        except httpx2.TransportError:
            return False

    def _idle(self) -> int:
        workers: list[dict[str, Any]] = self.http.get("/api/admin/workers").json()["workers"]
        return sum(one["status"] == "idle" for one in workers)

    def submit(self, number: int) -> str:
        script = f'echo "$SIMPLETUNER_JOB_ID" >> {self.journal}'
        config = {
            "trainer": "command",
            "settings": {"command": ["sh", "-c", script]},
            "resources": {"gpus": 0},
        }
        headers = {"idempotency-key": f"soak-{number}"}
        body = {"config": config, "target": "worker"}
        return str(
            self.http.post("/api/queue/submit", json=body, headers=headers)
            .raise_for_status()
            .json()["job_id"]
        )

    def ended(self) -> Counter[str]:
        return Counter(self.http.get("/api/queue/stats").raise_for_status().json()["by_state"])

    def sample(self, jobs: int) -> Sample:
        pids = {name: program.pid for name, program in self.programs.items()}
        return Sample(
            jobs,
            {name: _memory(pid) for name, pid in pids.items()},
            {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()},
            # The server's folder grows by its jobs and is not judged: to walk it would take longer with every job.
            {name: _disk(self.folder / name) for name in pids if name != "server"}
            | {"server": (self.folder / "server" / "fleet.db").stat().st_size},
        )

    def processor_time(self) -> ProcessorTime:
        """Without what a program cost before it was here: it is started once, however many jobs there are."""
        times = processor_times()
        agents = [program.pid for name, program in self.programs.items() if name != "server"]
        return ProcessorTime(
            server=sum(times[self.programs["server"].pid].own),
            agents=sum(sum(times[pid].own) for pid in agents),
            started=sum(sum(times[pid].ended) + all_below(pid, times) for pid in agents),
        )

    def close(self) -> None:
        self.http.close()
        for program in self.programs.values():
            program.kill()
        end_everything_under([self.folder])


class ProcessTimes(Struct, frozen=True):
    """One process by /proc: in seconds, user and system."""

    parent: int
    own: tuple[float, float]
    ended: tuple[float, float]
    """Of its children, and theirs, that have ended and were waited for."""


def processor_times() -> dict[int, ProcessTimes]:
    ticks = os.sysconf("SC_CLK_TCK")
    times = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            user, system, waited_user, waited_system = (int(field) / ticks for field in fields[11:15])
            times[int(name)] = ProcessTimes(int(fields[1]), (user, system), (waited_user, waited_system))
    return times


def all_below(root: int, times: dict[int, ProcessTimes]) -> float:
    children = [pid for pid, one in times.items() if one.parent == root]
    return sum(sum(times[pid].own) + sum(times[pid].ended) + all_below(pid, times) for pid in children)


def _memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024


def _disk(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total


def wait_for(condition: Any, what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not in {PATIENCE_S:g} s: {what}")
        time.sleep(0.05)


def soak(fleet: SoakFleet, jobs: int) -> tuple[list[str], list[Sample]]:
    """Keeps the queue filled until all have ended; a look at everything in between, as often."""
    ids: list[str] = []
    samples: list[Sample] = []
    began = time.monotonic()
    for number in range(jobs):
        ids.append(fleet.submit(number))
        if number % 20 == 0:
            wait_for(
                lambda done=number - AHEAD * fleet.workers: (
                    sum(fleet.ended()[s] for s in ("completed", "failed")) >= done
                ),
                "jobs end",
            )
        if number % max(1, jobs // SAMPLES) == 0:
            samples.append(fleet.sample(number))
            print(progress(samples[-1], jobs, time.monotonic() - began), flush=True)
    wait_for(
        lambda: sum(fleet.ended()[s] for s in ("completed", "failed", "cancelled")) == jobs,
        "the last job ends",
    )
    samples.append(fleet.sample(jobs))
    return ids, samples


def progress(now: Sample, jobs: int, passed_s: float) -> str:
    """One line while it runs: how far it is, how long it will take, and how large each program is."""
    left_s = (jobs - now.jobs) * passed_s / now.jobs if now.jobs else 0.0
    sizes = ", ".join(
        f"{name} {now.memory[name] / MIB:.0f} MiB, {now.files[name]} files, {now.disk[name] / MIB:.1f} MiB of disk"
        for name in now.memory
    )
    return f"{now.jobs} of {jobs} jobs in {passed_s:.0f} s, about {left_s / 60:.0f} minutes left: {sizes}"


def problems_of(fleet: SoakFleet, ids: list[str], samples: list[Sample]) -> list[str]:
    runs = Counter(fleet.journal.read_text().split())
    problems = [f"{job_id} ran {runs[job_id]} times" for job_id in ids if runs[job_id] != 1]
    if len(set(ids)) != len(ids) or set(runs) - set(ids):
        problems.append(f"{len(ids)} were submitted, {len(set(ids))} are different, {len(runs)} ran")
    states = {state: count for state, count in fleet.ended().items() if count}
    if states != {"completed": len(ids)}:
        problems.append(f"states at the end: {states}")
    return problems + drift(samples)


def drift(samples: list[Sample]) -> list[str]:
    """What is larger in the last quarter than in the second one, beyond its limit."""
    quarter = len(samples) // 4
    if not quarter:
        return []
    problems = []
    for what, limit in LIMITS.items():
        for name in getattr(samples[0], what):
            if what == "disk" and name == "server":
                continue
            then, now = (
                statistics.median(getattr(one, what)[name] for one in part)
                for part in (samples[quarter : 2 * quarter], samples[-quarter:])
            )
            caches = _room_in_caches(samples[quarter]) if (what, name) == ("memory", "server") else 0
            if now > then + limit + caches:
                problems.append(f"{what} of {name} went from {then:.0f} to {now:.0f}")
    return problems


def _room_in_caches(then: Sample) -> int:
    return max(0, CACHES - then.disk["server"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="how many jobs are run (1000)")
    parser.add_argument(
        "--workers", type=int, default=usual_workers(), help="how many workers run them (one for two cores)"
    )
    chosen = parser.parse_args(arguments)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        fleet = SoakFleet(Path(folder), chosen.workers)
        try:
            fleet.start()
            before = fleet.processor_time()
            ids, samples = soak(fleet, chosen.jobs)
            used = fleet.processor_time()
            problems = problems_of(fleet, ids, samples)
        finally:
            fleet.close()
    seconds = time.monotonic() - began
    print(
        f"{len(ids)} jobs in {seconds:.0f} s ({len(ids) / seconds:.1f} a second), {used.per_job(before, len(ids))}"
    )
    print("\n".join(problems) or "every job ran once; memory, open files and the workers' disks stayed flat")
    return 1 if problems else 0


def usual_workers() -> int:
    return max(FEWEST_WORKERS, len(os.sched_getaffinity(0)) // 2)


if __name__ == "__main__":
    sys.exit(main())
