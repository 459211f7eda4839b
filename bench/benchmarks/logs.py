"""A trainer that prints a lot under the worker, every byte of it sent on.

By turns it prints as much into a file that nobody reads; how much slower the turns are whose bytes are sent is the cost.
Worker, orchestrator and trainer share the machine. The same without any worker is the control: it should cost nothing.
"""

import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from threading import Event, Thread
from typing import Any

from msgspec import Struct

from bench.machine import cpu_s, rss_bytes
from bench.options import Options
from bench.processes import log_trainer
from bench.processes.log_trainer import TURN_MIB
from bench.programs import BenchmarkFailed, Server, jobs_folder, running_agents, running_server, scratch
from bench.rows import Results
from bench.targets import LOG_AGENT_GROWTH, LOG_PAGE, LOG_SLOWDOWN

TARGETS = (LOG_SLOWDOWN, LOG_AGENT_GROWTH, LOG_PAGE)
TITLE = "a trainer that computes and prints a lot, every byte sent on"
MIB = 1024 * 1024
TRAINER = Path(log_trainer.__file__)
WITHIN_S = 600.0
SAMPLE_EVERY_S = 0.25
WARM_MIB = 32
"""Printed once before: what any first job makes grow is not counted."""


class TrainerTimes(Struct):
    """What the trainer says: the seconds of each turn."""

    output: list[float]
    own_file: list[float]
    sha256: str
    ended_at: float

    @property
    def slowdown_percent(self) -> float:
        """Returns the median over turns that lie beside each other."""
        pairs = zip(self.output, self.own_file, strict=True)
        return (statistics.median([sent / own for sent, own in pairs]) - 1) * 100


class MemoryWatch:
    """Notes the highest resident size of some processes while something runs."""

    def __init__(self, **pids: int) -> None:
        self._pids = pids
        self.before = {name: rss_bytes(pid) for name, pid in pids.items()}
        self.most = dict(self.before)
        self._over = Event()
        self._thread = Thread(target=self._watch)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(SAMPLE_EVERY_S):
            for name, pid in self._pids.items():
                self.most[name] = max(self.most[name], rss_bytes(pid))

    def growth_mib(self, name: str) -> float:
        return (self.most[name] - self.before[name]) / MIB


def measure(options: Options, results: Results) -> None:
    size_mib = 64 if options.quick else 1024
    with scratch() as folder, running_server(folder) as server, running_agents(server, folder) as (agent,):
        _run_under_worker(server, jobs_folder(folder) / "warm", WARM_MIB)
        control = _run_without_worker(folder, max(TURN_MIB, size_mib // 4))
        before = cpu_s(agent) + cpu_s(server.pid)
        with MemoryWatch(agent=agent, server=server.pid) as memory:
            job_id, times, late_s = _run_under_worker(server, jobs_folder(folder) / "times", size_mib)
        cpu_ms = (cpu_s(agent) + cpu_s(server.pid) - before) * 1000 / size_mib
        if _digest(server, job_id) != times.sha256:
            raise BenchmarkFailed("what arrived is not what was printed")
        page_ms = [_timed_ms(lambda: _page(server, job_id)) for _ in range(5)]
        search_ms = _timed_ms(lambda: _search(server, job_id)) / size_mib
    turns = f"{TURN_MIB} MiB each, {len(times.output)} of each kind"
    results.add("turns that are sent", "s", times.output, turns)
    results.add("turns into a file of its own", "s", times.own_file)
    results.judge(LOG_SLOWDOWN, [times.slowdown_percent], f"{size_mib:,} MiB, median of neighbouring turns")
    cost_ms = (statistics.mean(times.output) - statistics.mean(times.own_file)) * 1000 / TURN_MIB
    results.add("what it costs the trainer", "ms/MiB", [cost_ms])
    results.add("control: the same without a worker", "%", [control.slowdown_percent])
    results.add("agent and server, CPU", "ms/MiB", [cpu_ms])
    results.add("end of the trainer to end of the job", "s", [late_s])
    results.judge(LOG_AGENT_GROWTH, [memory.growth_mib("agent")])
    results.add("server, memory growth", "MiB", [memory.growth_mib("server")])
    results.judge(LOG_PAGE, page_ms)
    results.add("search of the whole log for a text", "ms/MiB", [search_ms])
    results.notes.append("every byte arrived: SHA-256 of what was printed and of what is stored are equal")


def _run_without_worker(folder: Path, size_mib: int) -> TrainerTimes:
    answer, output = folder / "control", folder / "control.log"
    with output.open("wb") as file:
        subprocess.run(_argv(size_mib, answer), stdout=file, stderr=file, check=True)
    output.unlink()
    return _read_times(answer)


def _run_under_worker(server: Server, answer: Path, size_mib: int) -> tuple[str, TrainerTimes, float]:
    settings = {"command": _argv(size_mib, answer)}
    bundle = {"trainer": "command", "settings": settings, "resources": {"gpus": 0}}
    job_id = str(server.post("/api/queue/submit", {"config": bundle})["job_id"])
    deadline = time.monotonic() + WITHIN_S
    while (job := server.get(f"/api/jobs/{job_id}"))["status"] != "completed":
        if time.monotonic() > deadline or job["status"] in ("failed", "cancelled"):
            raise BenchmarkFailed(f"the job did not complete: {job}")
        time.sleep(0.2)
    times = _read_times(answer)
    return job_id, times, time.time() - times.ended_at


def _argv(size_mib: int, answer: Path) -> list[str]:
    """Runs a copy beside its answer: behind its wall a job sees nothing of this repository."""
    trainer = answer.with_name(TRAINER.name)
    shutil.copyfile(TRAINER, trainer)
    return [sys.executable, "-I", "-S", str(trainer), str(size_mib), str(answer), f"{answer}.own"]


def _read_times(path: Path) -> TrainerTimes:
    path.with_name(f"{path.name}.own").unlink()
    return TrainerTimes(**json.loads(path.read_text()))


def _digest(server: Server, job_id: str) -> str:
    digest = hashlib.sha256()
    with _open(server, f"/api/jobs/{job_id}/logs", "*/*") as answer:
        while data := answer.read(MIB):
            digest.update(data)
    return digest.hexdigest()


def _page(server: Server, job_id: str) -> None:
    with _open(server, f"/api/jobs/{job_id}/logs?tail=1000", "application/json") as answer:
        assert len(json.loads(answer.read())["lines"]) == 1000


def _search(server: Server, job_id: str) -> None:
    at, done = 0, False
    while not done:
        page = server.get(f"/api/jobs/{job_id}/logs/search?q=nowhere-to-be-found&from={at}")
        at, done = int(page["next"]), bool(page["done"])


def _open(server: Server, path: str, accept: str) -> Any:
    headers = {"authorization": f"Bearer {server.admin_token}", "accept": accept}
    return urllib.request.urlopen(urllib.request.Request(server.url + path, headers=headers), timeout=60)


def _timed_ms(act: Any) -> float:
    began = time.monotonic()
    act()
    return (time.monotonic() - began) * 1000
